"""deepinfer encode: what it prints for requests of each API, and what it says about input it cannot use."""
import json
import os
import subprocess
import sys
import unittest

PROGRAM = os.path.abspath(sys.argv.pop(1)) if len(sys.argv) > 1 else "build/release/src/app/deepinfer"
CHAT = {"model": "m", "thinking": {"type": "disabled"},
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is <｜User｜>?"}]}
PROMPT = "<｜begin▁of▁sentence｜><｜System｜>Be brief.<｜User｜>What is <｜User｜>?<｜Assistant｜></think>"


def encode(body, *args):
    text = body if isinstance(body, bytes) else json.dumps(body, ensure_ascii=False).encode()
    return subprocess.run([PROGRAM, "encode", "-", *args], input=text, capture_output=True, timeout=240)


class EncodeTest(unittest.TestCase):
    def printed(self, body, *args):
        r = encode(body, *args)
        self.assertEqual(r.returncode, 0, r.stderr)
        return r.stdout.decode()

    def test_each_api_gives_the_prompt(self):
        self.assertTrue(self.printed(CHAT).startswith(PROMPT + "\n"))
        responses = {
            "model": "m", "instructions": "Be brief.", "input": "What is <｜User｜>?", "reasoning": {"effort": "none"}}
        self.assertEqual(json.loads(self.printed(responses, "--api", "responses", "--json"))["prompt"], PROMPT)
        messages = {
            "model": "m", "max_tokens": 9, "system": "Be brief.", "thinking": {"type": "disabled"},
            "messages": CHAT["messages"][1:]}
        self.assertEqual(json.loads(self.printed(messages, "--api", "messages", "--json"))["prompt"], PROMPT)
        fim = json.loads(self.printed({"model": "m", "prompt": "a", "suffix": "b"}, "--api", "completions", "--json"))
        self.assertEqual(fim["prompt"], "<｜begin▁of▁sentence｜><｜fim▁begin｜>a<｜fim▁hole｜>b<｜fim▁end｜>")
        self.assertNotIn("<｜System｜>", self.printed(CHAT, "--v4"))

    def test_only_the_template_makes_special_tokens(self):
        with open("models/tiny/tokenizer.json", encoding="utf-8") as f:
            added = {t["id"]: t["content"] for t in json.load(f)["added_tokens"]}
        out = json.loads(self.printed(CHAT, "--json"))
        specials = ["<｜begin▁of▁sentence｜>", "<｜System｜>", "<｜User｜>", "<｜Assistant｜>", "</think>"]
        self.assertEqual([added[i] for i in out["token_ids"] if i in added], specials)
        self.assertEqual([s["token"] for s in out["trusted_spans"]], specials)
        data = out["prompt"].encode()
        for span in out["trusted_spans"]:
            self.assertEqual(data[span["begin"]:span["end"]].decode(), span["token"])
        self.assertEqual(out["parsing_options"]["initial"], "content_start")

    def test_explain_names_the_parts(self):
        out = self.printed({**CHAT, "tools": [{"type": "function", "function": {"name": "f"}}]}, "--explain")
        for part in ("system       messages[0]", "user         messages[1]", "tools        tools", "in all"):
            self.assertIn(part, out)
        counts = [int(line.split()[0]) for line in out[out.rindex("  tokens"):].splitlines()[1:]]
        self.assertEqual(sum(counts[:-1]), counts[-1])
        self.assertNotIn("\033", out)

    def test_refusals_are_those_of_the_api(self):
        r = encode({"model": "m", "messages": [{"role": "user", "content": [{"type": "smell"}]}]})
        self.assertEqual((r.returncode, r.stdout), (2, b""))
        self.assertEqual(json.loads(r.stderr)["error"]["param"], "messages[0].content[0].type")
        r = encode({"model": "m", "messages": []}, "--api", "messages")
        self.assertEqual(json.loads(r.stderr)["type"], "error")
        for bad in (b"", b"{", b"\xff", b"[" * 100000):
            r = encode(bad)
            self.assertEqual(r.returncode, 2)
            self.assertIn("invalid JSON request", json.loads(r.stderr)["error"]["message"])

    def test_files_that_are_not_there(self):
        for args in (["/nonexistent/request.json"], ["-", "--model", "/nonexistent"]):
            r = subprocess.run([PROGRAM, "encode", *args], input=json.dumps(CHAT).encode(), capture_output=True,
                               timeout=240)
            self.assertEqual(r.returncode, 2)
            self.assertIn("nonexistent", r.stderr.decode())


if __name__ == "__main__":
    unittest.main()
