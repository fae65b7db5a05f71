"""Images in requests: each is read and checked before the service says that its model cannot see; what a URL may reach.

The images' server is one of the test's own on loopback, which --image-allow-host lets the service talk to.
"""
import base64
import http.client
import http.server
import json
import pathlib
import struct
import threading
import time
import unittest
import zlib

from server import Server

FILES = pathlib.Path(__file__).resolve().parents[1] / "data" / "serve" / "images"
NO_EYES = "no vision tower"
PATIENCE_S = 150  # for images that do come, on a busy machine


def data_url(data, kind="png"):
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"


def png(width, height, rows):
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


class Images(http.server.BaseHTTPRequestHandler):
    """Paths say how to behave."""

    protocol_version = "HTTP/1.1"
    seen = []
    let_go = threading.Event()  # slow ones are slow until it is set

    def log_message(self, *_):
        pass

    def answer(self, status, body=b"", **headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        if "Content_Length" not in headers:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        self.seen.append((self.path, dict(self.headers)))
        image = (FILES / "rgb.png").read_bytes()
        try:
            self.behave(self.path[1:], image)
        except (BrokenPipeError, ConnectionResetError):
            pass  # the service has seen enough
        self.close_connection = True

    def behave(self, way, image):
        if way.startswith("to/"):
            return self.answer(302, Location=way[3:])
        if way == "loop":
            return self.answer(307, Location="/loop")
        if way.startswith("status/"):
            return self.answer(int(way[7:]), b"no")
        if way == "text":
            return self.answer(200, b"<html>not an image</html>", Content_Type="text/html")
        if way == "cut":
            return self.answer(200, image[:100], Content_Length=str(len(image)))
        if way == "silent":
            return self.let_go.wait()
        if way == "drip":
            self.answer(200, image[:20], Content_Length=str(10**6))
            while not self.let_go.wait(0.2):
                self.wfile.write(b"x")
            return None
        if way == "long":
            return self.answer(200, image, Content_Length=str(10**12))
        if way == "endless":
            self.send_response(200)
            self.end_headers()
            while True:
                self.wfile.write(b"\x89PNG" * 65536)
        if way == "heads":
            self.send_response(200)
            for i in range(3000):
                self.send_header(f"X-{i}", "x" * 60)
            self.end_headers()
            return None
        if way == "bomb":
            return self.answer(200, png(8000, 8000, zlib.compress(bytes(1000))))
        return self.answer(200, image, Content_Type="image/png")


class Store:
    def __init__(self):
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Images)
        self.server.daemon_threads = True
        self.address = f"127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def url(self, way="image.png"):
        return f"http://{self.address}/{way}"

    def close(self):
        self.server.shutdown()
        self.server.server_close()


def chat(*urls):
    parts = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    return {
        "model": "deepseek-v4.1-flash",
        "messages": [{"role": "user", "content": [{"type": "text", "text": "What is this?"}, *parts]}]}


class ImagesTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.store, cls.other = Store(), Store()
        cls.server = Server("--image-allow-host", cls.store.address, "--image-timeout", str(PATIENCE_S), "--image-mb",
                            "1")

    @classmethod
    def tearDownClass(cls):
        cls.server.__exit__()
        cls.store.close()
        cls.other.close()

    def setUp(self):
        Images.let_go.clear()
        self.addCleanup(Images.let_go.set)

    def ask(self, *urls):
        status, body = self.server.post("/v1/chat/completions", chat(*urls))
        return status, body["error"]

    def wait_for(self, condition):
        end = time.monotonic() + PATIENCE_S
        while not condition():
            self.assertLess(time.monotonic(), end)
            time.sleep(0.02)

    def check(self, url, code, words="", status=400):
        got, error = self.ask(url)
        self.assertEqual((got, error["code"]), (status, code), f"{url[:80]}: {error}")
        self.assertIn(words, error["message"])
        self.assertEqual(error["param"], "messages[0].content[1]")

    def test_good_images_are_read_and_then_refused_for_want_of_eyes(self):
        for case in json.loads((FILES / "cases.json").read_text()):
            kind = case["file"].split(".")[1].replace("jpg", "jpeg")
            self.check(data_url((FILES / case["file"]).read_bytes(), kind), "invalid_request_error", NO_EYES)
        self.check(self.store.url(), "invalid_request_error", NO_EYES)
        self.check(self.store.url("to//image.png"), "invalid_request_error", NO_EYES)
        path, headers = Images.seen[-1]
        self.assertEqual(path, "/image.png")
        self.assertEqual({name.lower() for name in headers}, {"host", "user-agent", "accept"})

    def test_bad_files_get_their_own_error(self):
        image = (FILES / "rgb.png").read_bytes()
        self.check(data_url(b"hello"), "unsupported_image_media_type", "webp, png, jpeg, and gif")
        self.check(data_url(image[:100]), "image_parse_error", "cut off")
        self.check(data_url(b""), "empty_image_file")
        self.check("data:image/png;base64,SGVs*G8=", "invalid_base64_image")
        self.check(data_url(png(9000, 9000, b"")), "image_too_large", "image_side_max")
        self.check(data_url(png(8000, 8000, zlib.compress(bytes(1000)))), "image_parse_error")
        self.check(data_url(bytes(2 << 20)), "invalid_request_error", "image_bytes_max")

    def test_all_apis_and_token_counts_check_images(self):
        good, bad = data_url((FILES / "rgb.png").read_bytes()), data_url(b"hello")
        for url, words in ((good, NO_EYES), (bad, "unsupported image")):
            source = {"type": "base64", "media_type": "image/png", "data": url.split(",")[1]}
            messages = {
                "model": "m", "max_tokens": 5,
                "messages": [{"role": "user", "content": [{"type": "image", "source": source}]}]}
            responses = {
                "model": "deepseek-v4.1-flash",
                "input": [{"role": "user", "content": [{"type": "input_image", "image_url": url}]}]}
            messages["model"] = "deepseek-v4.1-flash"
            for path, body in (("/v1/messages", messages), ("/v1/messages/count_tokens", messages),
                               ("/v1/responses", responses), ("/v1/tokenize", chat(url))):
                status, answer = self.server.post(path, body)
                self.assertEqual(status, 400, path)
                self.assertIn(words, answer["error"]["message"], path)

    def test_the_first_bad_image_is_named(self):
        status, error = self.ask(self.store.url(), self.store.url("text"), self.store.url("status/404"),
                                 self.store.url())
        self.assertEqual((status, error["param"]), (400, "messages[0].content[2]"), error)
        status, error = self.ask(*[self.store.url()] * 40)
        self.assertEqual(status, 400)
        self.assertIn(NO_EYES, error["message"])

    def test_servers_that_fail(self):
        self.check(self.store.url("status/404"), "image_file_not_found")
        self.check(self.store.url("status/403"), "failed_to_download_image", "403")
        self.check(self.store.url("status/503"), "failed_to_download_image", "503", status=500)
        self.check(self.store.url("text"), "unsupported_image_media_type")
        self.check(self.store.url("cut"), "failed_to_download_image", status=500)
        self.check(self.store.url("heads"), "failed_to_download_image", "headers")
        self.check("http://no-such-host.invalid/x.png", "failed_to_download_image", "no address")

    def test_bodies_without_end_are_not_read(self):
        self.check(self.store.url("long"), "image_file_too_large", "image_bytes_max")
        self.check(self.store.url("endless"), "image_file_too_large", "image_bytes_max")
        self.check(self.store.url("bomb"), "image_parse_error")

    def test_slow_servers_hold_up_nobody(self):
        slow = [threading.Thread(target=self.ask, args=[self.store.url(way)]) for way in ["silent", "drip"] * 40]
        for thread in slow:
            thread.start()
        self.wait_for(lambda: {"/silent", "/drip"} <= {path for path, _ in list(Images.seen)})
        status, _ = self.server.post("/v1/completions",
                                     {"model": "deepseek-v4.1-flash", "prompt": "Once", "max_tokens": 1})
        self.assertEqual(status, 200)
        self.check(data_url((FILES / "rgb.png").read_bytes()), "invalid_request_error", NO_EYES)
        self.assertTrue(all(thread.is_alive() for thread in slow))
        Images.let_go.set()
        for thread in slow:
            thread.join()

    def test_slow_servers_have_their_time(self):
        with Server("--image-allow-host", self.store.address, "--image-timeout", "1") as server:
            for way in ("silent", "drip"):
                status, body = server.post("/v1/chat/completions", chat(self.store.url(way)))
                self.assertEqual((status, body["error"]["code"]), (500, "failed_to_download_image"))
                self.assertIn("image_timeout_s", body["error"]["message"])

    # Bug case 26.
    def test_addresses_inside_are_refused_before_any_connection(self):
        before = len(Images.seen)
        for url in ("http://169.254.10.10/x", "http://169.254.169.254/latest/meta-data/", "http://localhost/x",
                    "http://10.0.0.1/", "http://[::1]/"):
            self.check(url, "invalid_image_url", "not on the public internet")
        for url in ("http://127.0.0.1:9/", self.other.url()):
            self.check(url, "invalid_image_url", "ports 80 and 443")
        self.check(f"http://user:secret@{self.store.address}/", "invalid_image_url", "password")
        for url in ("file:///etc/passwd", "ftp://example.com/x.png", "gopher://127.0.0.1/x"):
            self.check(url, "invalid_request_error", "Unsupported image_url format")
        self.assertEqual(len(Images.seen), before)

    def test_each_redirect_is_checked(self):
        for inside in ("http://169.254.10.10/x", "http://127.0.0.1/x", "http://localhost/x",
                       "http://[::ffff:127.0.0.1]/"):
            self.check(self.store.url("to/" + inside), "invalid_image_url", "not on the public internet")
        before = len(Images.seen)
        self.check(self.store.url("to/" + self.other.url()), "invalid_image_url", "ports 80 and 443")
        self.assertEqual([path for path, _ in Images.seen[before:]], ["/to/" + self.other.url()])
        self.check(self.store.url("to/file:///etc/passwd"), "invalid_image_url")
        self.check(self.store.url("loop"), "invalid_image_url", "redirected")

    def test_fetching_can_be_turned_off(self):
        with Server("--no-image-fetch", "--image-allow-host", self.store.address) as server:
            before = len(Images.seen)
            status, body = server.post("/v1/chat/completions", chat(self.store.url()))
            self.assertEqual((status, body["error"]["code"]), (400, "invalid_image_url"))
            self.assertEqual(len(Images.seen), before)

    def test_a_client_that_leaves_ends_the_fetch(self):
        with Server("--image-allow-host", self.store.address, "--image-timeout", "3600", "--drain-timeout",
                    "3600") as server:
            sockets, before = [], len(Images.seen)
            for _ in range(20):
                connection = http.client.HTTPConnection(server.url.split("//")[1])
                connection.request("POST", "/v1/chat/completions",
                                   json.dumps(chat(self.store.url("endless"), self.store.url("silent"))))
                sockets.append(connection)
            self.wait_for(lambda: {"/silent", "/endless"} <= {path for path, _ in Images.seen[before:]})
            for connection in sockets:
                connection.close()
            self.assertEqual(server.stop(), 0)

    def test_metrics_count_images_by_result(self):
        self.ask(data_url(b"hello"))
        _, text = self.server.get("/metrics")
        self.assertRegex(text, r'deepinfer_images_total\{result="unsupported_image_media_type",source="inline"\} [1-9]')


if __name__ == "__main__":
    unittest.main()
