"""KV servers of peers: the same answers cold, from servers, and with servers that are killed or stopped in mid-run."""
import json
import os
import pathlib
import re
import signal
import subprocess
import tempfile
import threading
import time
import unittest

from program import PROGRAM

SYSTEM = "You are a helpful assistant. " + " ".join(f"Rule {i}: tell the truth about number {i}." for i in range(40))
QUESTIONS = [f"Tell me story number {i}." for i in range(8)]


class Server:
    def __init__(self, *args, listen="127.0.0.1:0"):
        # A port that was used before may have become somebody's own end of a connection meanwhile.
        for _ in range(1 if listen.endswith(":0") else 600):
            self.process = subprocess.Popen([PROGRAM, "kvstore", "--listen-kv", listen, "--memory-mb", "64", *args],
                                            stderr=subprocess.PIPE, text=True)
            line = self.process.stderr.readline()
            if "cannot listen" not in line:
                break
            self.end()
            time.sleep(0.1)
        self.address = re.search(r"kvstore://(\S+),", line).group(1)
        threading.Thread(target=self.process.stderr.read, daemon=True).start()

    def signal(self, number):
        self.process.send_signal(number)

    def end(self):
        if self.process.poll() is None:
            self.signal(signal.SIGCONT)
            self.process.kill()
        self.process.wait()
        self.process.stderr.close()


class KvstoreTest(unittest.TestCase):
    def setUp(self):
        self.home = tempfile.TemporaryDirectory()
        self.env = {"PATH": os.environ["PATH"], "HOME": self.home.name}
        self.input = os.path.join(self.home.name, "in.jsonl")
        self.servers = []
        with open(self.input, "w") as file:
            for question in QUESTIONS:  # no block in common, so that every member has some
                messages = [{"role": "system", "content": question + SYSTEM}, {"role": "user", "content": question}]
                file.write(json.dumps({"messages": messages, "max_tokens": 10, "temperature": 0}) + "\n")

    def tearDown(self):
        for server in self.servers:
            server.end()
        self.home.cleanup()

    def start(self, *args, **kwargs):
        self.servers.append(Server(*args, **kwargs))
        return self.servers[-1]

    def run_program(self, *args, code=0):
        result = subprocess.run([PROGRAM, *args], env=self.env, capture_output=True, text=True, timeout=250)
        self.assertEqual(result.returncode, code, result.stderr + result.stdout)
        return result.stdout + result.stderr

    def generate(self, *args, meanwhile=None):
        """Answers, and how many prompt tokens of all requests came from a cache."""
        output = pathlib.Path(self.home.name, "out.jsonl")
        output.unlink(missing_ok=True)
        process = subprocess.Popen([
            PROGRAM, "generate", self.input, "-o",
            str(output), "--sequences", "1", "--quiet", *args], env=self.env, stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, text=True)
        if meanwhile:  # once the first answer is there
            for _ in range(3000):
                if process.poll() is not None or (output.exists() and output.stat().st_size > 0):
                    break
                time.sleep(0.01)
            meanwhile()
        self.said = process.communicate(timeout=250)[0]
        self.assertEqual(process.returncode, 0, self.said)
        lines = [json.loads(line) for line in output.read_text().splitlines()]
        lines.sort(key=lambda line: str(line.get("custom_id")))
        answers = sorted(json.dumps(line["response"]["choices"][0]["message"]) for line in lines)
        return answers, sum(l["response"]["usage"]["prompt_tokens_details"]["cached_tokens"] for l in lines)

    def generate_until(self, enough, want, *args):
        """Cached prompt tokens, once there are enough: a machine that stalls may put a block off, or find that
        computing one is faster than waiting for it. The answers are the same each time."""
        for _ in range(8):
            answers, cached = self.generate(*args)
            self.assertEqual(answers, want)
            if enough(cached):
                return cached
        self.fail(f"only {cached} prompt tokens come from the servers")

    def blocks(self, url):
        return sum(int(n) for n in re.findall(r"memory: (\d+) blocks", self.run_program("cache", "stat", url)))

    def test_members_come_and_go(self):
        cold, _ = self.generate("--no-cache")
        servers = [self.start() for _ in range(3)]
        remote = ("--kv-remote", "kvstore://" + ",".join(s.address for s in servers))
        self.assertEqual(self.generate(*remote)[0], cold)
        self.generate_until(lambda cached: cached >= 256, cold, *remote)
        every_block = self.blocks(remote[1])
        self.assertIn("blocks", self.run_program("cache", "stat", remote[1]))
        # Stopped in mid-run: it holds its connection and says nothing.
        answers, cached = self.generate(*remote, meanwhile=lambda: servers[0].signal(signal.SIGSTOP))
        self.assertEqual(answers, cold)
        self.assertLessEqual(cached, 128 * every_block)
        # Stopped from the start, and another one killed in mid-run.
        answers, cached = self.generate(*remote, meanwhile=lambda: servers[1].signal(signal.SIGKILL))
        self.assertEqual(answers, cold)
        self.assertLess(cached, 128 * every_block)
        servers[0].signal(signal.SIGCONT)
        self.start(listen=servers[1].address)  # empty
        # However long the loads take beside computing: in the end its blocks are on the new member, too.
        self.generate_until(lambda cached: cached > 0 and self.blocks(remote[1]) >= every_block, cold, *remote)
        self.run_program("cache", "purge", remote[1], "--all")
        self.assertIn("memory: 0 blocks", self.run_program("cache", "stat", remote[1]))

    def test_nobody_there(self):
        cold, _ = self.generate("--no-cache")
        away = "kvstore://127.0.0.1:1,127.0.0.1:2"  # ports that the system keeps
        self.assertEqual(self.generate("--kv-remote", away)[0], cold)
        self.assertIn(f"deepinfer: {away} is away, so prompts are computed until it is there: ", self.said)
        self.assertIn("No KV server answers", self.run_program("cache", "stat", "kvstore://127.0.0.1:1", code=2))
        output = os.path.join(self.home.name, "never.jsonl")
        too_much = self.run_program("generate", self.input, "-o", output, "--kv-host-mb", str(1 << 30), code=2)
        self.assertRegex(too_much, r"--kv-host-mb 1073741824 would be .* GB, but only .* are .*; give less")
        self.assertIn("--memory-mb", self.run_program("kvstore", "--memory-mb", str(1 << 30), code=2))

    def test_ssd_and_token(self):
        token = pathlib.Path(self.home.name, "token")
        token.write_text("a secret of many characters\n")
        token.chmod(0o600)
        ssd = os.path.join(self.home.name, "ssd")
        options = ("--kv-token-file", str(token), "--kv-ssd", ssd, "--kv-ssd-gb", "0.25")
        server = self.start(*options)
        cold, _ = self.generate("--no-cache")
        remote = ("--kv-remote", "kvstore://" + server.address)
        known = (*remote, "--kv-token-file", str(token))
        self.assertEqual(self.generate(*known)[0], cold)
        server.signal(signal.SIGTERM)
        self.assertEqual(server.process.wait(timeout=240), 0)
        self.start(*options, listen=server.address)
        self.generate_until(lambda cached: cached > 256, cold, *known)
        output = os.path.join(self.home.name, "o.jsonl")
        for _ in range(20):  # a server that is slow to answer counts as away, which is no error
            refused = subprocess.run([PROGRAM, "generate", self.input, "-o", output, *remote], env=self.env,
                                     capture_output=True, text=True, timeout=250)
            if refused.returncode != 0:
                break
            os.unlink(output)
        self.assertEqual(refused.returncode, 2, refused.stderr)
        self.assertIn("token", refused.stderr)
        token.chmod(0o644)
        self.assertIn("chmod", self.run_program("generate", self.input, "-o", output, *known, code=2))
        self.assertIn("secret", self.run_program("kvstore", "--listen-kv", "0.0.0.0:0", code=2))


if __name__ == "__main__":
    unittest.main()
