"""Computed prompts on SSD and in a shared folder: the same answers cold, warm, after restarts and with damaged files."""
import json
import os
import pathlib
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

    def test_ssd(self):
        cold, cached = self.generate("--no-cache")
        self.assertEqual(cached, 0)
        tiers = ("--kv-ssd", self.ssd, "--kv-ssd-gb", "1", "--kv-host-mb", "8")
        answers, cached = self.generate(*tiers)
        self.assertEqual((answers, cached), (cold, 0))
        answers, cached = self.generate(*tiers)
        self.assertEqual(answers, cold)
        self.assertGreaterEqual(cached, 256)
        self.assertEqual(cached % 128, 0)
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
        answers, cached = self.generate(*remote)
        self.assertEqual(answers, cold)
        self.assertGreaterEqual(cached, 256)
        for path in pathlib.Path(self.shared).rglob("*.kv"):
            path.write_bytes(path.read_bytes()[:-100])
        self.assertEqual(self.generate(*remote), (cold, 0))
        self.run_program("cache", "purge", "dir:" + self.shared, "--all")
        self.assertEqual(list(pathlib.Path(self.shared).rglob("*.kv")), [])

    def test_bad_input(self):
        for store, code in (("/nowhere", 2), ("rados:pool", 2), ("redis://127.0.0.1:1", 2)):
            self.run_program("cache", "stat", store, code=code)
        self.run_program("cache", "purge", "/nowhere", code=2)
        output = os.path.join(self.home.name, "out.jsonl")
        for args in (("--kv-remote", "redis://127.0.0.1:1"), ("--kv-remote", "what"), ("--kv-ssd", "/proc/kv"),
                     ("--kv-ssd-gb", "0")):
            text = self.run_program("generate", self.input, "-o", output, *args, code=2)
            self.assertEqual(len(text.strip().splitlines()), 1, text)


if __name__ == "__main__":
    unittest.main()
