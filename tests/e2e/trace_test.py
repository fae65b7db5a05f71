"""Traces, replay, statistics, bench offline and sweep, from outside."""
import csv
import json
import os
import pathlib
import re
import signal
import subprocess
import tempfile
import unittest
import xml.etree.ElementTree

from program import PROGRAM
from serve_test import Serving


class TraceTest(unittest.TestCase):
    def setUp(self):
        self.home = tempfile.TemporaryDirectory()
        self.path = pathlib.Path(self.home.name)
        self.env = {"PATH": os.environ["PATH"], "HOME": self.home.name}

    def tearDown(self):
        self.home.cleanup()

    def run_program(self, *args, code=0):
        result = subprocess.run([PROGRAM, *map(str, args)], env=self.env, capture_output=True, text=True, timeout=250,
                                cwd=self.home.name)
        self.assertEqual(result.returncode, code, result.stderr)
        return result

    def trace(self, *more):
        lines = [{"prompt": f"Number {i} is", "max_tokens": 10 + i, "n": 1 + i % 2} for i in range(6)]
        (self.path / "in.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        return self.run_program("generate", "in.jsonl", "-o", "out.jsonl", "--context", 256, "--sequences", 6,
                                "--trace-steps", "steps.jsonl", "--trace-chrome", "loop.json", *more)

    def test_generate_trace_and_replay(self):
        stderr = self.trace("--stats-interval", "5").stderr
        self.assertRegex(stderr, r"step \d+ \((prefill|decode|mixed)\): [\d.]+ steps/s")
        self.assertIn("a step in us, mean (longest): plan", stderr)
        self.assertRegex(stderr, r"GFLOP a step .* TFLOP/s, attention .* \(MFU\) \| experts: the busiest")
        answers = [json.loads(line) for line in (self.path / "out.jsonl").read_text().splitlines()]
        tokens = sum(a["response"]["usage"]["completion_tokens"] for a in answers)
        events = json.loads((self.path / "loop.json").read_text())
        self.assertGreater(len(events), 20)
        out = self.run_program("replay", "steps.jsonl", "--threads", 1, "--trace-chrome", "again.json").stdout
        self.assertRegex(out, rf"\d+ steps, {tokens} tokens; (\d+) of \1 rows of logits equal bit for bit")
        self.assertGreater(len(json.loads((self.path / "again.json").read_text())), 10)
        out = self.run_program("replay", "steps.jsonl", "--backend", "reference").stdout
        self.assertIn("another backend", out)
        # A killed program's last line is cut; a damaged token shows.
        lines = (self.path / "steps.jsonl").read_text().splitlines()
        (self.path / "cut.jsonl").write_text("\n".join(lines[:4]) + "\n" + lines[4][:40])
        self.assertIn("3 steps", self.run_program("replay", "cut.jsonl").stdout)
        step = json.loads(lines[1])
        step["tokens"][0] = (step["tokens"][0] + 1) % 8000
        (self.path / "bad.jsonl").write_text("\n".join([lines[0], json.dumps(step)]) + "\n")
        self.assertIn("first difference in step", self.run_program("replay", "bad.jsonl", code=1).stdout)
        self.assertIn("no step trace", self.run_program("replay", "in.jsonl", code=2).stderr)
        self.assertIn("no regular file", self.run_program("replay", "/dev/zero", code=2).stderr)
        self.assertIn(
            "Cannot write",
            self.run_program("generate", "in.jsonl", "-o", "o2", "--trace-steps", "/no/such/place", code=2).stderr)

    def test_serve_takes_the_engine_options_of_generate(self):
        trace = self.path / "served.jsonl"
        with Serving("--context", "256", "--trace-steps", str(trace), "--stats-interval", "3", "--ban-tokens",
                     "1000..7000", "--top-k-max", "5", "--keep", "80") as server:
            chat = {
                "model": "deepseek-v4.1-flash", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 12,
                "seed": 1, "temperature": 1}
            response, body = server.request("POST", "/v1/chat/completions", chat)
            self.assertEqual(response.status, 200, body)
            while "a step in us" not in server.said:
                server.said += server.process.stderr.readline()
            server.process.send_signal(signal.SIGTERM)
            self.assertEqual(server.process.wait(240), 0)
        self.assertRegex(server.said, r"step \d+ \((prefill|decode|mixed)\): .* aborted 0")
        steps = [json.loads(line) for line in trace.read_text().splitlines()][1:]
        drawn = [token for step in steps for tokens in step["drawn"] for token in tokens]
        self.assertEqual(len(drawn), 12)
        self.assertFalse([t for t in drawn if 1000 <= t <= 7000])
        self.assertRegex(
            self.run_program("replay", trace, "--threads", 1).stdout,
            r"12 tokens; (\d+) of \1 rows of logits equal bit for bit")

    def test_tiers_are_in_the_statistics_and_the_trace(self):
        loop = self.path / "loop.json"
        with Serving("--kv-host-mb", "16", "--trace-chrome", str(loop), "--stats-interval", "1") as server:
            chat = {
                "model": "deepseek-v4.1-flash",
                "messages": [{"role": "user", "content": "Tell me about the number 7. " * 60}], "max_tokens": 12}
            response, body = server.request("POST", "/v1/chat/completions", chat)
            self.assertEqual(response.status, 200, body)
            line = r"KV in host, chat: 0 of \d+ blocks found, 0.0 MB read, [\d.]+ MB in [1-9]\d* blocks written"
            while not re.search(line, server.said):
                server.request("POST", "/v1/chat/completions", {**chat, "max_tokens": 2})
                server.said += server.process.stderr.readline()
            server.process.send_signal(signal.SIGTERM)
            self.assertEqual(server.process.wait(240), 0)
        tracks = [e for e in json.loads(loop.read_text()) if e["ph"] == "C" and e["name"].startswith("KV host chat ")]
        self.assertGreater(tracks[-1]["args"]["written"], 0)

    def test_bench_offline(self):
        args = ("bench", "offline", "--prompts", 3, "--prompt-tokens", 40, "--output-tokens", 12, "--repeats", 2,
                "--threads", 1)
        self.assertIn("3 prompts of 40 tokens", self.run_program(*args).stdout)
        figures = json.loads(self.run_program(*args, "--json").stdout)
        self.assertTrue(
            all(figures[k] > 0
                for k in ("prefill_tokens_per_s", "decode_tokens_per_s", "user_tokens_per_s", "first_token_s")))
        self.assertGreaterEqual(figures["decode_tokens_per_s"] * 1.01, figures["user_tokens_per_s"])
        self.assertIn("context", self.run_program(*args, "--context", 20, code=2).stderr)
        self.run_program("bench", "online", code=2)

    def test_sweep(self):
        out = self.path / "curves"
        self.run_program("sweep", "-o", out, "--counts", "1,3", "--prompt-tokens", 30, "--output-tokens", 8,
                         "--decode-prompt-tokens", 4, "--repeats", 1)
        rows = list(csv.DictReader((out / "sweep.csv").read_text().splitlines()))
        self.assertEqual([(r["phase"], r["count"]) for r in rows],
                         [("prefill", "1"), ("prefill", "3"), ("decode", "1"), ("decode", "3")])
        for row in rows:
            self.assertGreater(float(row["throughput_tokens_per_s"]), 0)
            self.assertGreater(float(row["latency_s" if row["phase"] == "prefill" else "user_tokens_per_s"]), 0)
        for name in ("prefill.svg", "decode.svg"):
            svg = xml.etree.ElementTree.parse(out / name).getroot()
            circles = svg.findall("{http://www.w3.org/2000/svg}circle")
            self.assertEqual(len(circles), 2)
            for c in circles:
                self.assertTrue(0 < float(c.get("cx")) < 760 and 0 < float(c.get("cy")) < 480)
        for counts in ("", "2,1", "0", "a", "1,", "5000"):
            self.assertIn("counts", self.run_program("sweep", "-o", out, "--counts", counts, code=2).stderr)


if __name__ == "__main__":
    unittest.main(verbosity=1)
