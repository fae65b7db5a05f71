"""Drafts from outside: their numbers at /metrics and in run --stats, and deepinfer calibrate."""
import json
import os
import pathlib
import re
import subprocess
import tempfile
import unittest

from program import PROGRAM
from serve_test import Serving

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROMPT = "Tell me a story about a cat that counts: one two three, one two three."


def sample(text, name, labels=""):
    found = re.search(rf"^deepinfer_{name}{re.escape(labels)} (\S+)$", text, re.M)
    return float(found[1]) if found else 0.0


class DraftsTest(unittest.TestCase):
    def test_metrics_tell_the_places_of_the_drafts(self):
        request = {
            "model": "deepseek-v4.1-flash", "messages": [{"role": "user", "content": PROMPT}], "temperature": 0,
            "max_tokens": 48, "thinking": {"type": "disabled"}}
        answers, metrics = {}, {}
        for drafts in ("0", "3"):
            with Serving("--drafts", drafts, "--draft-confidence", "off") as server:
                response, text = server.request("POST", "/v1/chat/completions", request)
                self.assertEqual(response.status, 200, text)
                answers[drafts] = json.loads(text)["choices"][0]["message"]["content"]
                metrics[drafts] = server.request("GET", "/metrics")[1]
        self.assertEqual(answers["3"], answers["0"])
        for name in ("draft_tokens_total", "draft_rows_total", "draft_accepted_total"):
            self.assertEqual(sample(metrics["0"], name, "" if name == "draft_tokens_total" else '{place="1"}'), 0, name)
        text = metrics["3"]
        verified = [sample(text, "draft_rows_total", f'{{place="{p}"}}') for p in (1, 2, 3)]
        accepted = [sample(text, "draft_accepted_total", f'{{place="{p}"}}') for p in (1, 2, 3)]
        self.assertGreater(verified[0], 0)
        self.assertNotIn('deepinfer_draft_rows_total{place="4"}', text)
        for place in range(3):
            self.assertLessEqual(accepted[place], verified[place])
        # A place is reached where all before it were right.
        self.assertLessEqual(verified[1], accepted[0])
        self.assertLessEqual(verified[2], accepted[1])
        self.assertGreater(accepted[0], 0)
        self.assertGreaterEqual(sample(text, "draft_tokens_total"), sum(verified))
        self.assertGreater(sample(text, "draft_seconds_total"), 0)

    def test_run_tells_them(self):
        done = subprocess.run([
            PROGRAM, "run",
            str(ROOT / "models/tiny"), "--stats", "--draft-confidence", "off", "--temperature", "0", "--max-tokens",
            "32", "--prompt", PROMPT], capture_output=True, text=True, timeout=250)
        self.assertEqual(done.returncode, 0, done.stderr)
        told = re.search(
            r"(\d\.\d\d) tokens a step; guesses: (\d+) made, (\d+) not worth a row, (\d+) checked, (\d+) right; 1: "
            r"\d+%",
            done.stderr)
        self.assertIsNotNone(told, done.stderr)
        self.assertGreater(float(told[1]), 1)
        made, saved, checked, right = (int(told[i]) for i in (2, 3, 4, 5))
        self.assertEqual(saved, 0)  # all are checked that the answer has room for
        self.assertLessEqual(checked, made)
        self.assertLessEqual(right, checked)

    def test_calibrate_writes_what_serve_reads(self):
        with tempfile.TemporaryDirectory() as folder:
            data, output = os.path.join(folder, "requests.jsonl"), os.path.join(folder, "temperatures.json")
            with open(data, "w") as file:
                for i in range(24):
                    message = {"role": "user", "content": f"Tell me about the number {i}."}
                    file.write(
                        json.dumps({
                            "messages": [message], "thinking": {"type": "disabled"}, "max_tokens": 40, "seed": i}) +
                        "\n")
            command = [PROGRAM, "calibrate", str(ROOT / "models/tiny"), data, "-o", output]
            done = subprocess.run(command, capture_output=True, text=True, timeout=250)
            self.assertEqual(done.returncode, 0, done.stderr)
            fitted = json.loads(pathlib.Path(output).read_text())["draft_temperatures"]
            self.assertEqual(len(fitted), 5)
            self.assertTrue(all(t > 0 for t in fitted), fitted)
            for place in range(1, 6):
                self.assertRegex(done.stdout, rf"draft {place}: temperature \d+\.\d+")
            # Bins of what the drafter said beside what was right.
            self.assertRegex(done.stdout, r"\n  0\.\d to \d\.\d +\d+  [01]\.\d{3}  [01]\.\d{3}\n")
            few = os.path.join(folder, "few.jsonl")
            pathlib.Path(few).write_text('{"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}\n')
            done = subprocess.run([*command[:3], few, "-o", output + "2"], capture_output=True, text=True, timeout=250)
            self.assertNotEqual(done.returncode, 0)
            self.assertIn("rounds of drafts", done.stderr)
            self.assertFalse(os.path.exists(output + "2"))


if __name__ == "__main__":
    unittest.main()
