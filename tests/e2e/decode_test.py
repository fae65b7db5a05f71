"""deepinfer decode: what it prints for text and ids, and what it says about input it cannot use."""
import json
import os
import subprocess
import sys
import tempfile
import unittest

PROGRAM = os.path.abspath(sys.argv.pop(1)) if len(sys.argv) > 1 else "build/release/src/app/deepinfer"
CALL = (
    'thought</think>\n\nLook:\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name="f">\n<｜DSML｜ parameter name="a" string="true">x '
    '"y"'
    "</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n</｜DSML｜ calls>")


def decode(text, *args):
    return subprocess.run([PROGRAM, "decode", *args], input=text.encode(), capture_output=True, timeout=240)


class DecodeTest(unittest.TestCase):
    def printed(self, text, *args):
        r = decode(text, *args)
        self.assertEqual(r.returncode, 0, r.stderr)
        return json.loads(r.stdout)

    def refused(self, says, text, *args):
        r = decode(text, *args)
        self.assertEqual((r.returncode, r.stdout), (2, b""))
        self.assertIn(says, r.stderr.decode())

    def test_message(self):
        self.assertEqual(self.printed(CALL, "--tools"),
                         {"reasoning": "thought", "content": "Look:", "finish": "tool_calls", "stop_sequence": None,
                          "tool_calls": [{"name": "f", "arguments": '{"a": "x \\"y\\""}', "complete": True}]})
        cut = self.printed(CALL[:-60], "--tools", "--finish", "length")
        self.assertFalse(cut["tool_calls"][0]["complete"])
        stopped = self.printed("abcSTOPd", "--start", "content", "--stop", "STOP")
        self.assertEqual((stopped["content"], stopped["stop_sequence"]), ("abc", "STOP"))

    def test_ids_know_markup_by_id(self):
        with open("models/tiny/tokenizer.json", encoding="utf-8") as f:
            ids = {t["content"]: t["id"] for t in json.load(f)["added_tokens"]}
        message = self.printed(f"[{ids['<｜User｜>']}, {ids['</think>']}\n{ids['｜DSML｜']} {ids['<｜end▁of▁sentence｜>']}]",
                               "--ids", "--tools")
        self.assertEqual((message["reasoning"], message["content"]), ("<｜User｜>", "｜DSML｜"))

    def test_every_api_streams_and_ends(self):
        for api in ("chat", "responses", "messages", "completions"):
            body = self.printed(CALL, "--api", api, "--tools")
            self.assertEqual(body["id"], "decoded")
            events = decode(CALL, "--api", api, "--tools", "--events").stdout.decode()
            last = [frame for frame in events.split("\n\n") if frame][-1]
            end = {"responses": "event: response.completed", "messages": "event: message_stop"}.get(api, "data: [DONE]")
            self.assertTrue(last.startswith(end), last)

    def test_request_sets_the_parser(self):
        with tempfile.NamedTemporaryFile("w", encoding="utf-8") as f:
            json.dump(
                {
                    "model": "m", "messages": [{"role": "user", "content": "q"}], "thinking": {"type": "disabled"},
                    "stop": ["k:"]}, f)
            f.flush()
            body = self.printed("Look:", "--api", "chat", "--request", f.name)
            self.assertEqual(body["choices"][0]["message"], {"role": "assistant", "content": "Loo"})
            self.refused("excludes --tools", "x", "--request", f.name, "--tools")
        with tempfile.NamedTemporaryFile("w", encoding="utf-8") as f:
            f.write("{}")
            f.flush()
            self.refused("is refused", "x", "--request", f.name)

    def test_bad_input(self):
        self.refused("no token id at byte 2", "1 x2", "--ids")
        self.refused("no token id at byte 0", "99999999999999", "--ids")
        self.refused("no token id at byte 2", "1 -4", "--ids")
        with open("models/tiny/tokenizer.json", encoding="utf-8") as f:
            last = max(t["id"] for t in json.load(f)["added_tokens"])
        self.refused(f"Id 2 of the input is {last + 1}, but the ids of", f"1 {last + 1}", "--ids")
        self.refused(f"go from 0 to {last}.", "99999999", "--ids")
        self.refused("--events needs --api", "x", "--events")
        self.refused("stop sequence is empty", "x", "--stop", "")
        self.refused("nowhere.txt", "", "nowhere.txt")
        self.refused("nowhere.json", "1", "--ids", "--tokenizer", "nowhere.json")
        self.assertEqual(self.printed("\x00\ufffd", "--start", "content")["content"], "\x00\ufffd")
        self.assertEqual(self.printed("", "--ids")["finish"], "stop")


if __name__ == "__main__":
    unittest.main()
