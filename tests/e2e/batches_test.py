"""/v1/files and /v1/batches by the official Python client against `deepinfer serve` with the bundled model: upload,
poll, download, cancel, bad lines and files, a restart in the middle. The client is installed below build/; skipped
where it cannot be had."""

import contextlib
import json
import pathlib
import sqlite3
import sys
import tempfile
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import sdk_install  # noqa: E402

try:
    import openai
except ImportError:
    sdk_install.enter_python(__file__)

from program import SANITIZED  # noqa: E402
from server import Server  # noqa: E402

WAIT_S = 240
ENDED = {"completed", "failed", "cancelled", "expired"}


def chat_body(text, tokens=8):
    return {
        "model": "deepseek-v4.1-flash",
        "messages": [{"role": "user", "content": text}],
        "temperature": 0,
        "max_tokens": tokens,
        "thinking": {"type": "disabled"},
    }


def line(custom_id, body, url="/v1/chat/completions", **more):
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": url, "body": body, **more})


class BatchCase(unittest.TestCase):
    def setUp(self):
        if SANITIZED:
            self.skipTest("needs a build without sanitizers")
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.start()

    def start(self):
        self.server = Server("--state-dir", self.folder.name + "/state")
        self.addCleanup(self.server.__exit__)
        self.client = openai.OpenAI(base_url=self.server.url + "/v1", api_key="none", max_retries=0, timeout=240)
        self.addCleanup(self.client.close)

    def upload(self, lines):
        return self.client.files.create(file=("input.jsonl", "\n".join(lines).encode()), purpose="batch")

    def create(self, lines, endpoint="/v1/chat/completions", **more):
        return self.client.batches.create(
            input_file_id=self.upload(lines).id, endpoint=endpoint, completion_window="24h", **more
        )

    def wait(self, batch, until=lambda b: b.status in ENDED):
        end = time.monotonic() + WAIT_S
        while True:
            found = self.client.batches.retrieve(batch.id)
            if until(found):
                return found
            self.assertLess(time.monotonic(), end, f"still {found}")
            time.sleep(0.05)

    def results(self, file_id):
        rows = [json.loads(text) for text in self.client.files.content(file_id).text.splitlines()]
        self.assertEqual(len({row["id"] for row in rows}), len(rows))
        return {row["custom_id"]: row for row in rows}


class FilesTest(BatchCase):
    def test_files(self):
        text = line("a", chat_body("Hi"))
        first, second = self.upload([text]), self.upload([text, text])
        self.assertEqual((first.bytes, first.filename, first.purpose), (len(text), "input.jsonl", "batch"))
        self.assertEqual(self.client.files.retrieve(first.id), first)
        self.assertEqual(self.client.files.content(first.id).text, text)
        self.assertEqual([f.id for f in self.client.files.list()], [second.id, first.id])
        self.assertEqual([f.id for f in self.client.files.list(limit=1, order="asc")], [first.id, second.id])
        self.assertEqual(list(self.client.files.list(purpose="batch_output")), [])
        self.assertTrue(self.client.files.delete(first.id).deleted)
        for call in (self.client.files.retrieve, self.client.files.content, self.client.files.delete):
            self.assertRaises(openai.NotFoundError, call, first.id)

    def test_refused_files(self):
        with self.assertRaisesRegex(openai.BadRequestError, "purpose"):
            self.client.files.create(file=("x.jsonl", b"{}"), purpose="fine-tune")
        self.assertEqual(self.server.post("/v1/files", {"purpose": "batch"})[0], 400)
        for body in (b"", b"--x", b"--x\r\n\r\n", b"--x\r\n\r\nno name\r\n--x--",
                     b'--x\r\nContent-Disposition: form-data; name="file'):
            with self.subTest(body):
                answer = self.client._client.post(self.server.url + "/v1/files", content=body,
                                                  headers={"content-type": "multipart/form-data; boundary=x"})
                self.assertEqual((answer.status_code, answer.json()["error"]["type"]), (400, "invalid_request_error"))


class BatchesTest(BatchCase):
    def test_results_are_those_of_the_routes(self):
        texts = {f"line-{i}": f"Tell me about the number {i}." for i in range(12)}
        batch = self.create([line(k, chat_body(t)) for k, t in texts.items()] + [""], metadata={"run": "7"})
        self.assertEqual((batch.object, batch.status, batch.metadata), ("batch", "validating", {"run": "7"}))
        done = self.wait(batch)
        self.assertEqual(done.status, "completed")
        self.assertEqual(done.request_counts.to_dict(), {"total": 12, "completed": 12, "failed": 0})
        self.assertIsNone(done.error_file_id)
        self.assertEqual(self.client.files.retrieve(done.output_file_id).purpose, "batch_output")
        results = self.results(done.output_file_id)
        self.assertEqual(list(results), list(texts))
        for key, text in texts.items():
            response = results[key]["response"]
            self.assertEqual((response["status_code"], results[key]["error"]), (200, None))
            direct = self.server.post("/v1/chat/completions", chat_body(text))[1]
            self.assertEqual(response["body"]["choices"], direct["choices"])
        self.assertEqual([b.id for b in self.client.batches.list()], [batch.id])

    def test_every_endpoint(self):
        model = "deepseek-v4.1-flash"
        bodies = {
            "/v1/completions": {"model": model, "prompt": "Once", "max_tokens": 4},
            "/v1/responses": {"model": model, "input": "Hi", "max_output_tokens": 16},
            "/v1/messages": {"model": model, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4},
        }
        batches = {url: self.create([line("one", body, url)], endpoint=url) for url, body in bodies.items()}
        kinds = {"/v1/completions": "text_completion", "/v1/responses": "response", "/v1/messages": "message"}
        for url, batch in batches.items():
            body = self.results(self.wait(batch).output_file_id)["one"]["response"]["body"]
            self.assertEqual(body.get("object", body.get("type")), kinds[url])

    def test_bad_lines_fail_alone(self):
        lines = [
            line("good", chat_body("Hi")),
            "{no json",
            line("elsewhere", chat_body("Hi"), url="/v1/embeddings"),
            line("good", chat_body("again")),
            line("stream", {**chat_body("Hi"), "stream": True}),
            line("invalid", {**chat_body("Hi"), "temperature": "hot"}),
            json.dumps({"method": "POST", "url": "/v1/chat/completions", "body": {}}),
        ]
        done = self.wait(self.create(lines))
        self.assertEqual(done.status, "completed")
        self.assertEqual(done.request_counts.to_dict(), {"total": 7, "completed": 1, "failed": 6})
        self.assertEqual(list(self.results(done.output_file_id)), ["good"])
        failed = [json.loads(text) for text in self.client.files.content(done.error_file_id).text.splitlines()]
        codes = [(f["custom_id"], f["error"] and f["error"]["code"]) for f in failed]
        self.assertEqual(
            codes,
            [
                (None, "invalid_json_line"),
                ("elsewhere", "invalid_url"),
                ("good", "duplicate_custom_id"),
                ("stream", "invalid_body"),
                ("invalid", None),
                (None, "invalid_custom_id"),
            ],
        )
        self.assertEqual(failed[4]["response"]["status_code"], 400)
        self.assertIn("temperature", failed[4]["response"]["body"]["error"]["message"])

    def test_refused_batches(self):
        done = self.wait(self.create(["", " "]))
        self.assertEqual((done.status, done.errors.data[0].code), ("failed", "empty_file"))
        file = self.upload([line("a", chat_body("Hi"))]).id
        good = {"input_file_id": file, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
        for name, bad in {
            "input_file_id": "file-none",
            "endpoint": "/v1/files",
            "completion_window": "1h",
            "metadata": {"a": "x" * 513},
        }.items():
            with self.subTest(name), self.assertRaises(openai.BadRequestError) as caught:
                self.client.batches.create(**{**good, name: bad})
            self.assertEqual(caught.exception.param, name)
        self.assertRaises(openai.NotFoundError, self.client.batches.retrieve, "batch_none")
        with self.assertRaises(openai.ConflictError):
            self.client.batches.cancel(done.id)

    def test_cancel(self):
        batch = self.create([line(f"{i}", chat_body(f"Tell me story {i}.", 400)) for i in range(200)])
        self.wait(batch, lambda b: b.request_counts.completed > 0)
        self.assertEqual(self.client.batches.cancel(batch.id).status, "cancelling")
        done = self.wait(batch)
        self.assertEqual(done.status, "cancelled")
        self.assertLess(done.request_counts.completed, 200)
        self.assertEqual(len(self.results(done.output_file_id)), done.request_counts.completed)

    def test_goes_on_after_a_kill(self):
        self.goes_on_after(lambda server: (server.process.kill(), server.process.wait()))

    def test_goes_on_after_a_proper_end(self):
        self.goes_on_after(lambda server: self.assertEqual(server.stop(), 0))

    def goes_on_after(self, end):
        for count in (40, 160, 640, 2560):  # a quick machine may have done all of them before the end
            batch = self.create([line(f"{i}", chat_body(f"Tell me story {i}.", 60)) for i in range(count)])
            before = self.wait(batch, lambda b: b.request_counts.completed > 0)
            end(self.server)
            with contextlib.closing(sqlite3.connect(self.folder.name + "/state/state.sqlite")) as state:
                (stored,) = state.execute("SELECT completed FROM batches WHERE id = ?", [batch.id]).fetchone()
            self.assertLessEqual(before.request_counts.completed, stored)
            self.start()
            if stored < count:
                break
        self.assertLess(stored, count)
        done = self.wait(batch)
        self.assertEqual((done.status, done.request_counts.completed), ("completed", count))
        # What the first process had stored was not done again.
        answered = self.server.metric('deepinfer_http_requests_total{.*route="/v1/chat/completions".*}')
        self.assertEqual(answered, count - stored)
        self.assertEqual(sorted(self.results(done.output_file_id), key=int), [str(i) for i in range(count)])

    def test_one_service_has_a_folder(self):
        with self.assertRaisesRegex(AssertionError, "in use by another process"):
            Server("--state-dir", self.folder.name + "/state")


class WithoutStateTest(unittest.TestCase):
    def test_says_how_to_have_it(self):
        if SANITIZED:
            self.skipTest("needs a build without sanitizers")
        with Server() as server:
            for path in ("/v1/files", "/v1/batches", "/v1/files/file-1/content"):
                status, body = server.get(path)
                self.assertEqual(status, 501)
                self.assertIn("--state-dir", body["error"]["message"])
            self.assertIn("/v1/batches/{id}/cancel", server.get("/openapi.json")[1]["paths"])


if __name__ == "__main__":
    unittest.main()
