"""deepinfer serve as a program: starts, answers, refuses what it must, ends when told to."""
import http.client
import json
import re
import signal
import socketserver
import subprocess
import threading
import unittest

from program import PROGRAM

WAIT_S = 300


class Serving:
    """A server on a free port, ended with the block."""

    def __init__(self, *flags, scheme="http"):
        self.process = subprocess.Popen([PROGRAM, "serve", "--port", "0", *flags], stderr=subprocess.PIPE, text=True)
        self.port = None
        self.said = ""
        for line in self.process.stderr:
            self.said += line
            found = re.search(scheme + r"://127\.0\.0\.1:(\d+)", line)
            if found:
                self.port = int(found.group(1))
                break
        if self.port is None:
            self.process.wait()
            raise AssertionError("the server did not start: " + self.said)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
        self.process.stderr.close()
        self.process.wait()

    def request(self, method, path, body=None, headers=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT_S)
        connection.request(method, path, None if body is None else json.dumps(body), headers or {})
        response = connection.getresponse()
        text = response.read().decode()
        connection.close()
        return response, text


CHAT = {
    "model": "deepseek-v4.1-flash", "messages": [{"role": "user", "content": "Tell me a story."}], "max_tokens": 8,
    "seed": 1}


class ServeTest(unittest.TestCase):
    def test_answers_whole_and_streamed_the_same(self):
        with Serving() as server:
            response, body = server.request("POST", "/v1/chat/completions", CHAT)
            self.assertEqual(response.status, 200, body)
            whole = json.loads(body)["choices"][0]["message"]["reasoning_content"]
            self.assertGreater(len(whole), 8)
            response, body = server.request("POST", "/v1/chat/completions", {**CHAT, "stream": True})
            self.assertEqual(response.getheader("content-type"), "text/event-stream")
            frames = [f[len("data: "):] for f in body.split("\n\n") if f]
            self.assertEqual(frames.pop(), "[DONE]")
            deltas = [json.loads(f)["choices"][0]["delta"].get("reasoning_content") or "" for f in frames]
            self.assertEqual("".join(deltas), whole)

    def test_ends_after_the_response_in_work(self):
        with Serving() as server:
            connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=WAIT_S)
            connection.request(
                "POST", "/v1/completions",
                json.dumps({"model": "deepseek-v4.1-flash", "prompt": "Once", "max_tokens": 60, "stream": True}))
            response = connection.getresponse()
            response.read(10)
            server.process.send_signal(signal.SIGTERM)
            self.assertTrue(response.read().endswith(b"data: [DONE]\n\n"))
            self.assertEqual(server.process.wait(WAIT_S), 0)

    def test_openapi_names_what_there_is(self):
        with Serving() as server:
            document = json.loads(server.request("GET", "/openapi.json")[1])
            self.assertEqual(document["openapi"], "3.1.0")
            schemas = document["components"]["schemas"]
            self.assertIn("logit_bias", schemas["ChatRequest"]["properties"])
            operations = [(path, method, o) for path, item in document["paths"].items() for method, o in item.items()]
            self.assertEqual(len({o["operationId"] for _, _, o in operations}), len(operations))
            for path, method, o in operations:
                body = o.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
                if "$ref" in body:
                    self.assertIn(body["$ref"].rsplit("/", 1)[1], schemas)
                response, text = server.request(method.upper(), re.sub(r"\{\w+\}", "none", path),
                                                {} if method == "post" else None)
                self.assertNotEqual(response.status, 405, path)
                self.assertNotIn("There is nothing at", text)

    def test_encoded_bodies_unknown_paths_and_wrong_fields_are_said(self):
        with Serving() as server:
            response, text = server.request("POST", "/v1/chat/completions", CHAT, {"Content-Encoding": "gzip"})
            self.assertEqual((response.status, json.loads(text)["error"]["code"]),
                             (415, "unsupported_content_encoding"))
            response, text = server.request("POST", "/v1/tokenize", {"prompt": "a", "text": True})
            self.assertEqual((response.status, json.loads(text)["error"]["param"]), (400, "text"))
            response, text = server.request("POST", "/v1/embeddings", {})
            self.assertEqual(response.status, 404)
            self.assertIn("/v1/embeddings", json.loads(text)["error"]["message"])

    def test_completions_take_token_ids_as_they_are(self):
        with Serving() as server:
            text = "Once upon a time"
            ids = [0] + json.loads(server.request("POST", "/v1/tokenize", {"prompt": text})[1])["tokens"]
            more = {"model": "deepseek-v4.1-flash", "max_tokens": 8, "temperature": 0, "echo": True}

            def complete(prompt):
                response, body = server.request("POST", "/v1/completions", {**more, "prompt": prompt})
                return response.status, json.loads(body)

            status, of_text = complete(text)
            self.assertEqual(status, 200, of_text)
            for prompt in (ids, [ids]):
                status, of_ids = complete(prompt)
                self.assertEqual(status, 200, of_ids)
                self.assertEqual(of_ids["choices"], of_text["choices"])
                self.assertEqual(of_ids["usage"]["prompt_tokens"], len(ids))
            status, refused = complete([0, 1 << 20])
            self.assertEqual((status, refused["error"]["param"]), (400, "prompt"))
            self.assertIn("prompt[1]", refused["error"]["message"])

    def test_several_prompts_are_answered_as_each_alone(self):
        with Serving() as server:
            more = {"model": "deepseek-v4.1-flash", "max_tokens": 12, "temperature": 0.9, "seed": 5, "n": 2}
            prompts = ["Once upon a time", [0, 17, 30], "", "Once upon a time"]

            def complete(prompt, **extra):
                response, text = server.request("POST", "/v1/completions", {**more, **extra, "prompt": prompt})
                self.assertEqual(response.status, 200, text)
                return text

            alone = [json.loads(complete(prompt)) for prompt in prompts]
            together = json.loads(complete(prompts))
            texts = [choice["text"] for answer in alone for choice in answer["choices"]]
            self.assertEqual([choice["index"] for choice in together["choices"]], list(range(8)))
            self.assertEqual([choice["text"] for choice in together["choices"]], texts)
            for count in ("prompt_tokens", "completion_tokens"):
                self.assertEqual(together["usage"][count], sum(answer["usage"][count] for answer in alone))
            streamed = [""] * 8
            finished = []
            for line in complete(prompts, stream=True).splitlines():
                if line.startswith("data: {"):
                    (choice,) = json.loads(line[6:])["choices"]
                    streamed[choice["index"]] += choice["text"]
                    if choice["finish_reason"]:
                        finished.append(choice["index"])
            self.assertEqual(streamed, texts)
            self.assertEqual(sorted(finished), list(range(8)))
            stopped = json.loads(complete(prompts, stop=[texts[0][:4]], n=1))
            self.assertEqual([choice["text"] == "" for choice in stopped["choices"]], [True, False, False, True])
            echoed = json.loads(complete(["a", "b"], echo=True, n=1, max_tokens=1))
            self.assertEqual([choice["text"][0] for choice in echoed["choices"]], ["a", "b"])
            response, text = server.request("POST", "/v1/completions", {**more, "prompt": ["a"] * 129})
            self.assertEqual(response.status, 400)
            self.assertIn("128", text)

    def test_prompts_of_one_request_count_each(self):
        with Serving("--max-requests", "3") as server:
            body = {"model": "deepseek-v4.1-flash", "max_tokens": 2}
            for count, status in ((4, 400), (3, 200)):
                response, text = server.request("POST", "/v1/completions", {**body, "prompt": ["a"] * count})
                self.assertEqual(response.status, status, text)

    def test_words_of_others_cannot_steer_the_terminal(self):
        class Hostile(socketserver.BaseRequestHandler):
            def handle(self):
                while self.request.recv(65536):
                    self.request.sendall(b"-LOADING \x1b]0;title\x07\r\n")

        with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Hostile) as store:
            store.daemon_threads = True
            threading.Thread(target=store.serve_forever, daemon=True).start()
            with Serving("--kv-remote", "redis://127.0.0.1:%d" % store.server_address[1]) as server:
                self.assertIn("LOADING \u241b]0;title", server.said)
                self.assertNotIn("\x1b", server.said)
                self.assertNotIn("\x07", server.said)
            store.shutdown()

    def test_refuses_other_machines_without_keys(self):
        done = subprocess.run([PROGRAM, "serve", "--host", "0.0.0.0"], capture_output=True, text=True, timeout=WAIT_S)
        self.assertEqual(done.returncode, 2)
        self.assertIn("without API keys", done.stderr)

    def test_a_taken_port_is_said(self):
        with Serving() as server:
            done = subprocess.run([PROGRAM, "serve", "--port", str(server.port)], capture_output=True, text=True,
                                  timeout=WAIT_S)
            self.assertEqual(done.returncode, 2)
            self.assertIn("Cannot listen on", done.stderr)


if __name__ == "__main__":
    unittest.main()
