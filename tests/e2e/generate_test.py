"""deepinfer generate: forms of lines, errors a line, order, and a job that is killed and resumed."""
import json
import os
import pathlib
import signal
import subprocess
import tempfile
import time
import unittest

from program import PROGRAM, SANITIZED

ROOT = pathlib.Path(__file__).resolve().parents[2]
GREEDY = json.loads((ROOT / "tests/data/model/greedy.json").read_text())["prompts"]


def chat(text, **more):
    return {"messages": [{"role": "user", "content": text}], "thinking": {"type": "disabled"}, "max_tokens": 12, **more}


class GenerateTest(unittest.TestCase):
    def setUp(self):
        self.home = tempfile.TemporaryDirectory()
        self.input = os.path.join(self.home.name, "in.jsonl")
        self.output = os.path.join(self.home.name, "out.jsonl")
        self.env = {"PATH": os.environ["PATH"], "HOME": self.home.name}

    def tearDown(self):
        self.home.cleanup()

    def write(self, lines):
        with open(self.input, "wb") as file:
            for line in lines:
                file.write((line if isinstance(line, bytes) else json.dumps(line, ensure_ascii=False).encode()) + b"\n")

    def command(self, *args):
        return [PROGRAM, "generate", self.input, "-o", self.output, "--context", "1024", "--sequences", "8", *args]

    def run_program(self, *args, code=0):
        result = subprocess.run(self.command(*args), env=self.env, capture_output=True, timeout=250)
        self.assertEqual(result.returncode, code, result.stderr.decode())
        return result.stderr.decode()

    def answers(self):
        return [json.loads(line) for line in pathlib.Path(self.output).read_text().splitlines()]

    def test_echo(self):
        ids = GREEDY[4]["prompt_ids"]
        prompts = ({"prompt": "Once upon a time"}, {"token_ids": ids}, {"prompt": ids})
        self.write([{**p, "max_tokens": 6, "temperature": 0, "echo": echo} for p in prompts for echo in (False, True)])
        self.run_program()
        text = [a["response"]["choices"][0]["text"] for a in self.answers()]
        self.assertEqual(text[1], "Once upon a time" + text[0])
        self.assertTrue(text[3].endswith(text[2]) and len(text[3]) > len(text[2]), text)
        self.assertEqual(text[5], text[3])

    def test_forms(self):
        case = GREEDY[4]
        self.write([
            chat("Say hello.", id="a"),
            {
                "custom_id": "b", "method": "POST", "url": "/v1/chat/completions",
                "body": {"model": "any", **chat("Say hello.", n=2, temperature=0, logprobs=True, top_logprobs=2)}},
            b"",
            {"id": 7, "token_ids": case["prompt_ids"], "max_tokens": 8, "temperature": 0, "full_prefill": True},
            {
                "prompt": "Once upon a time", "max_tokens": 8, "seed": 3, "top_k": 5, "min_p": 0.01,
                "repetition_penalty": 1.1},
            {"custom_id": "c", "url": "/v1/completions", "body": {"prompt": "One, two,", "max_tokens": 5}},
            {
                "id": "j",
                **chat("A number as JSON.", response_format={"type": "json_object"}, temperature=0, max_tokens=60)}, ])
        stderr = self.run_program()
        self.assertIn("6 answers, 0 errors", stderr)
        lines = self.answers()
        self.assertEqual([a["line"] for a in lines], [1, 2, 4, 5, 6, 7])
        a, b, ids, text, c, j = lines
        self.assertEqual(a["id"], "a")
        self.assertEqual(a["response"]["object"], "chat.completion")
        self.assertTrue(a["response"]["choices"][0]["message"]["content"])
        self.assertEqual((b["custom_id"], b["response"]["status_code"], b["error"]), ("b", 200, None))
        body = b["response"]["body"]
        self.assertEqual(len(body["choices"]), 2)
        self.assertEqual(body["choices"][0]["message"], body["choices"][1]["message"])
        logprobs = body["choices"][0]["logprobs"]["content"]
        self.assertEqual(len(logprobs[0]["top_logprobs"]), 2)
        joined = b"".join(bytes(t["bytes"]) for t in logprobs).decode()
        self.assertEqual(joined, body["choices"][0]["message"]["content"])
        self.assertEqual(ids["response"]["usage"]["prompt_tokens"], len(case["prompt_ids"]))
        self.assertTrue(case["text"].startswith(ids["response"]["choices"][0]["text"]))
        self.assertEqual(ids["response"]["usage"]["completion_tokens"], 8)
        self.assertEqual(text["response"]["choices"][0]["finish_reason"], "length")
        self.assertEqual(c["response"]["body"]["object"], "text_completion")
        if j["response"]["choices"][0]["finish_reason"] == "stop":
            json.loads(j["response"]["choices"][0]["message"]["content"])

    def test_same_job_same_answers_in_any_company(self):
        lines = [chat(f"Tell me about number {i}.", temperature=1.0) for i in range(6)]
        self.write(lines)
        self.run_program()
        whole = {a["line"]: a["response"]["choices"] for a in self.answers()}
        os.remove(self.output)
        self.run_program("--sequences", "1", "--threads", "1", "--no-cache", "--order", "done")
        self.assertEqual({a["line"]: a["response"]["choices"] for a in self.answers()}, whole)
        self.assertGreater(len({json.dumps(c) for c in whole.values()}), 1)

    def test_bad_lines_do_not_stop_the_others(self):
        good = chat("Say hello.")
        bad = [
            b"{", b"[1]", b'"x"', b"\xff\xfe", {"id": 1}, {"prompt": "x", "messages": []}, {"prompt": 5},
            {"custom_id": "q", "url": "/v1/embeddings", "body": {}}, {"custom_id": "q", "body": {}}, {"token_ids": []},
            {"token_ids": [5, 2.5]}, {"token_ids": [-1], "max_tokens": 2},
            chat("x", allowed_token_ids=[]), {"token_ids": [9999999],
                                              "max_tokens": 2}, {"token_ids": [5] * 2000, "max_tokens": 2},
            chat("x", temperature=-1),
            chat("x", top_k=-7),
            chat("x", n=1000),
            chat("x", max_tokens=-1),
            chat("x", logit_bias={"9999999": -100}),
            chat("x", logit_bias={"-1": 5}),
            chat("x", logit_bias={"7": 1e9}),
            chat("x", logit_bias={"x": 1}),
            chat("x", stream=True),
            chat("x", min_p="much"),
            {"prompt": ["a", "b"]},
            chat("long " * 3000)]
        self.write([good, *bad, good])
        stderr = self.run_program(code=1)
        self.assertIn(f"2 answers, {len(bad)} errors", stderr)
        lines = self.answers()
        self.assertEqual([a["line"] for a in lines], list(range(1, len(bad) + 3)))
        for answer in lines[1:-1]:
            self.assertIsNone(answer["response"])
            self.assertGreater(len(answer["error"]["message"]), 10, answer)
        self.assertIn("token_ids[1] is 2.5", lines[11]["error"]["message"])
        self.assertIn("allowed_token_ids is empty", lines[13]["error"]["message"])
        self.assertIn("token_ids[0] is 9999999; token ids", lines[14]["error"]["message"])
        for answer, name in zip(lines[16:24], [
                "temperature", "top_k", "n", "max_tokens", "logit_bias", "logit_bias", "logit_bias", "logit_bias"]):
            self.assertIn(name, answer["error"]["message"])
        self.assertIn("a line for each", lines[-3]["error"]["message"])
        for answer in (lines[0], lines[-1]):
            self.assertIsNone(answer["error"])
            self.assertEqual(answer["response"]["choices"][0]["finish_reason"],
                             lines[0]["response"]["choices"][0]["finish_reason"])

    def test_constraints_tools_and_other_apis(self):
        schema = {
            "type": "object", "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 9}}, "required": ["n"],
            "additionalProperties": False}
        formed = {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}, "seed": 1}
        tool = {
            "type": "function", "function": {
                "name": "look", "strict": True, "parameters": {
                    "type": "object", "properties": {"at": {"type": "string", "enum": ["sky", "sea"]}},
                    "required": ["at"], "additionalProperties": False}}}
        user = [{"role": "user", "content": "A number, please."}]
        self.write([
            chat("A number, please.", **{**formed, "max_tokens": 60}),
            {"messages": user, "thinking": {"type": "enabled"}, "max_tokens": 300, **formed},
            chat("Look around.", tools=[tool], tool_choice="required", max_tokens=100, seed=2),
            {
                "custom_id": "r", "method": "POST", "url": "/v1/responses",
                "body": {"input": "Say hello.", "max_output_tokens": 20}},
            {"custom_id": "m", "method": "POST", "url": "/v1/messages", "body": {"messages": user, "max_tokens": 20}},
        ])
        self.run_program("--seed", "3")
        plain, thoughtful, called, response, message = self.answers()
        self.assertEqual(list(json.loads(plain["response"]["choices"][0]["message"]["content"])), ["n"])
        choice = thoughtful["response"]["choices"][0]
        if choice["finish_reason"] == "stop":
            self.assertEqual(list(json.loads(choice["message"]["content"])), ["n"])
        else:  # it thought until the end
            self.assertEqual((choice["finish_reason"], choice["message"]["content"]), ("length", ""))
        call, = called["response"]["choices"][0]["message"]["tool_calls"]
        self.assertEqual(call["function"]["name"], "look")
        self.assertIn(json.loads(call["function"]["arguments"])["at"], ("sky", "sea"))
        self.assertEqual((response["response"]["status_code"], response["response"]["body"]["object"]),
                         (200, "response"))
        self.assertEqual((message["response"]["status_code"], message["response"]["body"]["type"]), (200, "message"))

    def test_progress_on_a_terminal(self):
        self.write([chat(f"Tell me a story about number {i}.", max_tokens=60) for i in range(40)])
        master, slave = os.openpty()
        process = subprocess.Popen(self.command(), env={**self.env, "TERM": "xterm"}, stderr=slave)
        os.close(slave)
        seen = b""
        while True:
            try:
                part = os.read(master, 4096)
            except OSError:  # the program has ended
                break
            if not part:
                break
            seen += part
        self.assertEqual(process.wait(), 0)
        os.close(master)
        text = seen.decode()
        self.assertIn("40 answers, 0 errors", text)
        if "Generating" in text:  # it took more than a second
            self.assertRegex(text, r"Generating .*\d+ % +\d+ of 40")
            self.assertIn("tokens/s", text)

    def test_stop_texts(self):
        self.write([chat("Say hello.", temperature=0, max_tokens=30)])
        self.run_program()
        text = self.answers()[0]["response"]["choices"][0]["message"]["content"]
        stop = text[3:9]
        os.remove(self.output)
        self.write([chat("Say hello.", temperature=0, max_tokens=30, stop=[stop, "never said"])])
        self.run_program()
        choice = self.answers()[0]["response"]["choices"][0]
        self.assertEqual((choice["message"]["content"], choice["finish_reason"]), (text[:text.index(stop)], "stop"))

    def test_killed_and_resumed(self):
        self.killed_and_resumed(10 if SANITIZED else 40, 4)

    def killed_and_resumed(self, count, attempts):
        if os.path.exists(self.output):
            os.remove(self.output)
        lines = [chat(f"Tell me a story about number {i}.", max_tokens=40, n=1 + i % 2) for i in range(count)]
        lines.insert(5, b"not json")
        self.write(lines)
        self.run_program("--order", "done", code=1)
        want = {a["line"]: (a["response"] and a["response"]["choices"], a["error"]) for a in self.answers()}
        os.remove(self.output)
        kills = 0
        for order in ("input", "done") * 3:
            process = subprocess.Popen(self.command("--resume", "--order", order), env=self.env,
                                       stderr=subprocess.DEVNULL)
            before = self.size()
            deadline = time.monotonic() + 60
            while process.poll() is None and self.size() <= before and time.monotonic() < deadline:
                time.sleep(0.002)
            process.send_signal(signal.SIGKILL)
            kills += process.wait() == -signal.SIGKILL
            with open(self.output, "ab") as file:  # as if it had been killed in the middle of a write
                file.write(b'{"line":3,"dig')
        if not kills and attempts > 1:  # a quick machine: all was done before the first kill
            return self.killed_and_resumed(count * 4, attempts - 1)
        self.assertGreater(kills, 0)
        self.run_program("--resume", code=1 if 6 not in self.done() else 0)
        got = self.answers()
        self.assertEqual(sorted(a["line"] for a in got), sorted(want))
        self.assertEqual({a["line"]: (a["response"] and a["response"]["choices"], a["error"]) for a in got}, want)
        self.assertIn(f"0 answers, 0 errors, {count + 1}", self.run_program("--resume"))

    def size(self):
        return os.path.getsize(self.output) if os.path.exists(self.output) else 0

    def done(self):
        lines = pathlib.Path(self.output).read_bytes().split(b"\n")[:-1]
        return {json.loads(line)["line"] for line in lines}

    def test_outputs_that_are_not_this_job(self):
        self.write([chat("Say hello.", max_tokens=1)])
        self.run_program()
        self.assertIn("--resume", self.run_program(code=2))
        self.write([chat("Say something else.", max_tokens=1)])
        self.assertIn("another", self.run_program("--resume", code=2))
        pathlib.Path(self.output).write_text("notes\n")
        self.assertIn("not the output", self.run_program("--resume", code=2))
        os.remove(self.input)
        self.assertIn("Cannot read", self.run_program(code=2))
        os.remove(self.output)
        os.mkfifo(self.input)  # nobody writes: it must not wait
        self.assertIn("a pipe", self.run_program(code=2))
        self.input = "/dev/zero"
        self.assertIn("no regular file", self.run_program(code=2))
        self.input = self.home.name
        self.assertIn("a folder", self.run_program(code=2))


if __name__ == "__main__":
    unittest.main(verbosity=1)
