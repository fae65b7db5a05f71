"""Redis as a store of computed prompts: away at first, there later, gone again; full; behind a password."""
import os
import pathlib
import shutil
import socket
import subprocess
import tempfile
import time
import unittest

from program import PROGRAM
from server import Server

SYSTEM = "You are a helpful assistant. " + " ".join(f"Rule {i}: tell the truth about number {i}." for i in range(40))


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


@unittest.skipUnless(shutil.which("redis-server") and shutil.which("redis-cli"), "no Redis here")
class RedisTest(unittest.TestCase):
    def setUp(self):
        self.home = tempfile.TemporaryDirectory()
        self.processes = []
        self.asked = 0

    def tearDown(self):
        for process in self.processes:
            process.kill()
            process.wait()
        self.home.cleanup()

    def start_redis(self, port, *args):
        """False where the port has become somebody else's."""
        words = ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", self.home.name, *args]
        process = subprocess.Popen(["redis-server", *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.processes.append(process)
        while process.poll() is None:
            if self.redis(port, "ping").strip() in ("PONG", "NOAUTH Authentication required."):
                return True
            time.sleep(0.02)
        return False

    def redis(self, port, *words):
        command = ["redis-cli", "-p", str(port), *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=240).stdout

    def ask(self, server, question=None):
        """Cached prompt tokens; without a question, of a prompt that was never asked before."""
        self.asked += question is None
        text = question or f"Question number {self.asked}."
        messages = [{"role": "system", "content": text + SYSTEM}, {"role": "user", "content": text}]
        request = {"model": "deepseek-v4.1-flash", "messages": messages, "max_tokens": 4, "temperature": 0}
        status, body = server.post("/v1/chat/completions", request)
        self.assertEqual(status, 200, body)
        answer = body["choices"][0]["message"]["content"]
        return answer, body["usage"]["prompt_tokens_details"]["cached_tokens"]

    def until(self, condition, what):
        end = time.monotonic() + 240
        while not condition():
            self.assertLess(time.monotonic(), end, what)

    def test_comes_later_and_goes(self):
        for _ in range(10):
            port = free_port()
            url = f"redis://127.0.0.1:{port}"
            with Server("--kv-remote", url) as server:
                self.assertIn(f"deepinfer: {url} is away, so prompts are computed until it is there: ", server.output())
                answer, cached = self.ask(server, "The first.")
                self.assertEqual(cached, 0)
                if not self.start_redis(port):
                    continue
                # By itself, in mid-run: new prompts are written once it is there.
                def written():
                    self.ask(server)
                    return int(self.redis(port, "dbsize") or 0) > 0
                self.until(written, "nothing is written after Redis came")
                # Hits in another process, whose own memory has nothing.
                with Server("--kv-remote", url) as other:
                    self.assertNotIn("is away", other.output())
                    def found():
                        self.ask(server)
                        self.ask(other, f"Question number {self.asked}.")
                        return other.metric("deepinfer_kv_tier_hits_total") > 0
                    self.until(found, "nothing is found in Redis")
                    self.processes[-1].kill()  # in mid-run
                    self.processes[-1].wait()
                    again, _ = self.ask(other, "The first.")
                    self.assertEqual(again, answer)
                    for _ in range(3):
                        self.ask(other)
            return
        self.fail("no port stays free")

    def test_passwords(self):
        port = free_port()
        while not self.start_redis(port, "--requirepass", "secret"):
            port = free_port()
        password = pathlib.Path(self.home.name, "password")
        password.write_text("wrong\n")
        password.chmod(0o600)
        store = f"redis://127.0.0.1:{port}?password_file={password}"
        def stat(url):
            return subprocess.run([PROGRAM, "cache", "stat", url], capture_output=True, text=True, timeout=240)
        for url in (f"redis://127.0.0.1:{port}", store):
            said = stat(url)
            self.assertEqual(said.returncode, 2)
            self.assertRegex(said.stderr, "NOAUTH|does not take the password")
            question = pathlib.Path(self.home.name, "in.jsonl")
            question.write_text('{"messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 2}\n')
            run = subprocess.run([PROGRAM, "generate", str(question), "-o", str(question) + ".out", "--kv-remote", url],
                                 capture_output=True, text=True, timeout=240)
            self.assertEqual(run.returncode, 2, run.stderr)
            self.assertRegex(run.stderr, "The remote KV store cannot be used: .*(NOAUTH|does not take the password)")
        password.write_text("secret\n")
        self.assertIn("answers", stat(store).stdout)
        password.chmod(0o644)
        self.assertIn("chmod 600", stat(store).stderr)


if __name__ == "__main__":
    unittest.main()
