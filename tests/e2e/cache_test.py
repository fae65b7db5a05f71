"""Computed prompts on SSD and in a shared folder: the same answers cold, warm, after restarts and with damaged
files."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

from program import PROGRAM

SYSTEM = "You are a helpful assistant. " + " ".join(f"Rule {i}: tell the truth about number {i}." for i in range(40))
QUESTIONS = ["Tell me a story.", "What is the weather?", "Who are you?"]


class CacheTest(unittest.TestCase):
    def setUp(self):
        self.home = tempfile.TemporaryDirectory()
        self.ssd = os.path.join(self.home.name, "ssd")
        self.shared = os.path.join(self.home.name, "shared")
        self.env = {"PATH": os.environ["PATH"], "HOME": self.home.name}
        self.input = os.path.join(self.home.name, "in.jsonl")
        with open(self.input, "w") as file:
            for question in QUESTIONS:
                messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}]
                file.write(json.dumps({"messages": messages, "max_tokens": 10, "temperature": 0}) + "\n")

    def tearDown(self):
        self.home.cleanup()

    def run_program(self, *args, code=0):
        result = subprocess.run([PROGRAM, *args], env=self.env, capture_output=True, text=True, timeout=250)
        self.assertEqual(result.returncode, code, result.stderr + result.stdout)
        return result.stdout + result.stderr

    def generate(self, *args):
        """Answers, and how many prompt tokens of the first request came from a cache."""
        output = os.path.join(self.home.name, "out.jsonl")
        if os.path.exists(output):
            os.remove(output)
        self.run_program("generate", self.input, "-o", output, "--sequences", "1", "--quiet", *args)
        lines = [json.loads(line) for line in pathlib.Path(output).read_text().splitlines()]
        answers = [line["response"]["choices"][0]["message"] for line in lines]
        return answers, lines[0]["response"]["usage"]["prompt_tokens_details"]["cached_tokens"]

    def warm(self, want, *args):
        """Cached tokens, once there are some: a machine that stalls may end a run before all is written."""
        for _ in range(8):
            answers, cached = self.generate(*args)
            self.assertEqual(answers, want)
            if cached >= 256:
                return cached
        self.fail("nothing is found again")

    def test_ssd(self):
        cold, cached = self.generate("--no-cache")
        self.assertEqual(cached, 0)
        tiers = ("--kv-ssd", self.ssd, "--kv-ssd-gb", "1", "--kv-host-mb", "8")
        answers, cached = self.generate(*tiers)
        self.assertEqual((answers, cached), (cold, 0))
        self.assertEqual(self.warm(cold, *tiers) % 128, 0)
        self.assertIn("0 were damaged", self.run_program("cache", "verify", self.ssd))
        self.assertIn("no tenant", self.run_program("cache", "stat", self.ssd))
        # Changed bytes in every segment: misses, never other answers.
        for path in pathlib.Path(self.ssd).glob("*.kv"):
            data = bytearray(path.read_bytes())
            for at in range(3000, len(data), 4096):
                data[at] ^= 1
            path.write_bytes(data)
        answers, cached = self.generate(*tiers)
        self.assertEqual((answers, cached), (cold, 0))
        # Other weights, other caches: nothing of it is found when the numbers come from another backend.
        answers, cached = self.generate(*tiers, "--backend", "plain")
        self.assertEqual(cached, 0)
        self.assertIn("removed", self.run_program("cache", "purge", self.ssd, "--all"))
        answers, cached = self.generate(*tiers)
        self.assertEqual((answers, cached), (cold, 0))

    def test_shared_folder(self):
        cold, _ = self.generate("--no-cache")
        remote = ("--kv-remote", "dir:" + self.shared)
        self.assertEqual(self.generate(*remote), (cold, 0))
        self.warm(cold, *remote)
        for path in pathlib.Path(self.shared).rglob("*.kv"):
            path.write_bytes(path.read_bytes()[:-100])
        self.assertEqual(self.generate(*remote), (cold, 0))
        self.run_program("cache", "purge", "dir:" + self.shared, "--all")
        self.assertEqual(list(pathlib.Path(self.shared).rglob("*.kv")), [])

    def test_encrypted(self):
        cold, _ = self.generate("--no-cache")
        keys = []
        for name in ("one", "two"):
            keys.append(os.path.join(self.home.name, name))
            pathlib.Path(keys[-1]).write_bytes(os.urandom(32))
            os.chmod(keys[-1], 0o600)
        tiers = ("--kv-ssd", self.ssd, "--kv-ssd-gb", "1", "--kv-key-file")
        self.assertEqual(self.generate(*tiers, keys[0]), (cold, 0))
        self.warm(cold, *tiers, keys[0])
        self.assertIn("0 were damaged", self.run_program("cache", "verify", self.ssd))
        self.assertEqual(self.generate(*tiers, keys[1]), (cold, 0))
        os.chmod(keys[0], 0o640)
        self.run_program("generate", self.input, "-o", self.input + ".o", *tiers, keys[0], code=2)

    def test_explain(self):
        log = os.path.join(self.home.name, "prompts.log")
        with open(self.input, "w") as file:
            for day in ("29 November", "30 November"):
                system = SYSTEM + f"\nToday is {day}.\n" + SYSTEM
                messages = [{"role": "system", "content": system}, {"role": "user", "content": "Hello!"}]
                file.write(json.dumps({"messages": messages, "max_tokens": 2, "temperature": 0}) + "\n")
        self.generate("--kv-log", log, "--kv-ttl-chat", "0.5")
        first = self.run_program("cache", "explain", "1", "--log", log)
        self.assertIn("No earlier request", first)
        text = self.run_program("cache", "explain", "--log", log)
        self.assertIn("request 1: Today is 29 November.", text)
        self.assertIn("request 2: Today is 30 November.", text)
        self.assertIn("Likely cause: a line in the system prompt or first message that changes", text)
        # As many rows run as the service's model wants, which --model names.
        wide = os.path.join(self.home.name, "wide")
        shutil.copytree("models/tiny", wide)
        config = json.loads(pathlib.Path(wide, "config.json").read_text())
        usable = []
        window = config["text_config"]["sliding_window"]
        for more in (0, 256):
            config["text_config"]["sliding_window"] = window + more
            pathlib.Path(wide, "config.json").write_text(json.dumps(config))
            told = self.run_program("cache", "explain", "--log", log, "--model", wide)
            usable.append(int(re.search(r"at most (\d+) could be", told)[1]))
        self.assertEqual(usable[0] - usable[1], 256)
        self.assertIn(f"at most {usable[0]} could be", text)
        keep = str(window + 256 + 12)
        self.assertIn(f"at most {usable[1]} could be",
                      self.run_program("cache", "explain", "--log", log, "--keep", keep))
        # No less than what came, though the last rows run all the same.
        with open(self.input, "w") as file:
            for _ in range(2):
                file.write(json.dumps({"token_ids": list(range(20, 453)), "max_tokens": 2}) + "\n")
        self.run_program("generate", self.input, "-o", os.path.join(self.home.name, "ids.jsonl"), "--sequences", "1",
                         "--quiet", "--kv-log", log)
        self.assertIn("433 prompt tokens, 384 from the cache; at most 384 could be",
                      self.run_program("cache", "explain", "--log", log))
        self.assertIn("has no request 9", self.run_program("cache", "explain", "9", "--log", log, code=2))
        self.run_program("cache", "explain", "--log", "/nowhere", code=2)

    def test_bad_input(self):
        for store, code in (("/nowhere", 2), ("rados:pool", 2), ("redis://127.0.0.1:1", 2)):
            self.run_program("cache", "stat", store, code=code)
        self.run_program("cache", "purge", "/nowhere", code=2)
        for command in (("stat",), ("purge", "--expired"), ("purge", "--all")):
            text = self.run_program("cache", command[0], "dir:" + self.shared, *command[1:], code=2)
            self.assertIn(f"There is no folder {self.shared}", text)
            self.assertFalse(os.path.exists(self.shared))
        output = os.path.join(self.home.name, "out.jsonl")
        remotes = ("redis://127.0.0.1:x", "redis+cluster://", "what")
        for args in (*(("--kv-remote", r) for r in remotes), ("--kv-ssd", "/proc/kv"), ("--kv-ssd-gb", "0")):
            text = self.run_program("generate", self.input, "-o", output, *args, code=2)
            self.assertEqual(len(text.strip().splitlines()), 1, text)


if __name__ == "__main__":
    unittest.main()
