"""What --state-dir keeps: stored responses over restarts; and a disk that is full, which stops what needs it and
nothing else."""
import json
import pathlib
import resource
import tempfile
import time
import unittest
import urllib.error
import urllib.request
import uuid

from program import SANITIZED
from server import Server

WAIT_S = 240
MODEL = "deepseek-v4.1-flash"


def body(text, **more):
    return {
        "model": MODEL, "input": text, "temperature": 0, "reasoning": {"effort": "none"}, "max_output_tokens": 12,
        **more}


class StateCase(unittest.TestCase):
    def setUp(self):
        if SANITIZED:
            self.skipTest("needs a build without sanitizers")
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.start()

    def start(self, *flags):
        self.server = Server("--state-dir", str(self.folder / "state"), *flags)
        self.addCleanup(self.server.__exit__)

    def restart(self, *flags, kill=False):
        if kill:
            self.server.process.kill()
            self.server.process.wait()
        else:
            self.assertEqual(self.server.stop(), 0)
        self.start(*flags)

    def respond(self, text, **more):
        status, answer = self.server.post("/v1/responses", body(text, **more))
        self.assertEqual(status, 200, answer)
        return answer

    def wait_for(self, condition):
        end = time.monotonic() + WAIT_S
        while not condition():
            self.assertLess(time.monotonic(), end)
            time.sleep(0.05)


class StoredResponsesTest(StateCase):
    def test_responses_and_their_conversations_outlive_restarts(self):
        first = self.respond("Who are you?")
        second = self.respond("What can you do?", previous_response_id=first["id"])
        want = self.respond("Tell me a story.", previous_response_id=second["id"], store=False)
        self.restart()
        self.assertEqual(self.server.get("/v1/responses/" + second["id"]), (200, second))
        _, items = self.server.get(f"/v1/responses/{second['id']}/input_items")
        self.assertEqual([item["content"] for item in items["data"]], ["What can you do?"])
        again = self.respond("Tell me a story.", previous_response_id=second["id"], store=False)
        self.assertEqual(again["usage"]["input_tokens"], want["usage"]["input_tokens"])
        text = [answer["output"][0]["content"][0]["text"] for answer in (again, want)]
        self.assertEqual(*text)
        self.assertEqual(self.server.post(f"/v1/responses/{second['id']}/cancel", {})[0], 400)

        third = self.respond("And then?", previous_response_id=second["id"])
        self.wait_for(lambda: self.server.metric("deepinfer_saved_responses") == 3)
        status, gone = self.server.request("/v1/responses/" + second["id"], method="DELETE")
        self.assertEqual((status, gone), (200, {"id": second["id"], "object": "response", "deleted": True}))
        # Removed ones stay for those that continue them.
        self.assertEqual(self.server.metric("deepinfer_saved_responses"), 3)
        self.restart(kill=True)
        for act in ({}, {"method": "DELETE"}):
            self.assertEqual(self.server.request("/v1/responses/" + second["id"], **act)[0], 404)
        status, error = self.server.post("/v1/responses", body("Hi", previous_response_id=second["id"]))
        self.assertEqual((status, error["error"]["code"]), (400, "previous_response_not_found"))
        self.respond("Go on", previous_response_id=third["id"])

    def test_they_are_bounded_by_memory_disk_and_days(self):
        self.restart("--stored-mb", "1", "--stored-disk-mb", "4")
        text = "Once upon a time. " * 1200
        ids = [self.respond(text, instructions=str(i), max_output_tokens=1, truncation="auto")["id"] for i in range(3)]
        self.assertEqual(self.server.get("/v1/responses/" + ids[0])[0], 200)
        self.assertLess(self.server.metric("deepinfer_stored_responses_bytes"), 1 << 20)
        self.assertEqual(self.server.metric("deepinfer_unsaved_responses_total"), 0)
        self.restart("--stored-days", "0.5")
        self.assertEqual(self.server.get("/v1/responses/" + ids[2])[0], 200)


class FullDiskTest(StateCase):
    """No file of the service may grow: what a full disk does, without one."""

    def allow(self, size):
        resource.prlimit(self.server.process.pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

    def upload(self, content):
        mark = uuid.uuid4().hex
        parts = (
            f'--{mark}\r\nContent-Disposition: form-data; '
            f'name="purpose"\r\n\r\nbatch\r\n--{mark}\r\nContent-Disposition: form-data; '
            f'name="file"; filename="in.jsonl"\r\n\r\n{content}\r\n--{mark}--\r\n')
        request = urllib.request.Request(self.server.url + "/v1/files", parts.encode(),
                                         {"content-type": "multipart/form-data; boundary=" + mark})
        try:
            with urllib.request.urlopen(request, timeout=240) as response:
                return response.status, json.load(response)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    def batch(self, file):
        return self.server.post("/v1/batches", {
            "input_file_id": file["id"], "endpoint": "/v1/completions", "completion_window": "24h"})

    def test_what_needs_the_disk_says_so_and_chats_go_on(self):
        self.restart("--access-log", str(self.folder / "access.log"))
        # More than any machine does until the test ends.
        body = {"model": MODEL, "prompt": "Once", "max_tokens": 1000, "ignore_eos": True}
        lines = [{"custom_id": str(i), "method": "POST", "url": "/v1/completions", "body": body} for i in range(1000)]
        status, file = self.upload("\n".join(map(json.dumps, lines)))
        self.assertEqual(status, 200, file)
        status, batch = self.batch(file)
        self.assertEqual(status, 200, batch)
        self.wait_for(lambda: self.server.get("/v1/batches/" + batch["id"])[1]["status"] == "in_progress")
        kept = self.respond("Who are you?")
        self.wait_for(lambda: self.server.metric("deepinfer_saved_responses") == 1)
        self.allow(1)

        status, answer = self.upload("x" * 100_000)
        self.assertEqual((status, answer["error"]["type"]), (507, "server_error"), answer)
        self.assertIn("disk", answer["error"]["message"])
        for status, answer in (self.batch(file), self.server.request("/v1/files/" + file["id"], method="DELETE"),
                               self.server.request("/v1/responses/" + kept["id"], method="DELETE")):
            self.assertEqual(status, 507, answer)
            self.assertIn("disk", answer["error"]["message"])
        self.assertEqual(self.server.get("/v1/files/" + file["id"])[0], 200)
        chat = {"model": MODEL, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}
        for _ in range(5):
            self.assertEqual(self.server.post("/v1/chat/completions", chat)[0], 200)
        stored = self.respond("What can you do?")  # kept in memory only
        self.assertEqual(self.server.get("/v1/responses/" + stored["id"])[0], 200)
        self.respond("Go on", previous_response_id=stored["id"])
        self.wait_for(lambda: self.server.metric("deepinfer_unsaved_responses_total") == 2)
        self.assertEqual(self.server.get("/health")[0], 200)
        self.assertEqual(self.server.get("/v1/batches/" + batch["id"])[1]["status"], "in_progress")

        self.allow(resource.RLIM_INFINITY)
        self.assertEqual(self.upload("x" * 100_000)[0], 200)
        done = lambda: self.server.get("/v1/batches/" + batch["id"])[1]["request_counts"]["completed"]
        before = done()
        self.wait_for(lambda: done() > before)
        self.assertEqual(self.server.post(f"/v1/batches/{batch['id']}/cancel", {})[0], 200)
        self.wait_for(lambda: self.server.get("/v1/batches/" + batch["id"])[1]["status"] == "cancelled")
        later = self.respond("And now?", previous_response_id=stored["id"])
        self.restart()
        self.assertEqual(self.server.get("/v1/responses/" + stored["id"])[0], 404)
        self.respond("Still there?", previous_response_id=later["id"])  # it brought its conversation along


if __name__ == "__main__":
    unittest.main()
