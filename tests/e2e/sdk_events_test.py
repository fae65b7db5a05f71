"""Events and bodies are what the official Python SDKs expect: every one validates against the SDK's own types, and the
SDK's stream helpers arrive at the whole body. Test-only packages, installed below build/; skipped where they cannot be
had."""
import http.server
import json
import os
import pathlib
import sys
import threading
import typing
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import sdk_install  # noqa: E402
import sdk_outputs  # noqa: E402

try:
    import anthropic
    import openai
except ImportError:
    sdk_install.enter_python(__file__)

PROGRAM = os.path.abspath(sys.argv.pop(1)) if len(sys.argv) > 1 else "build/release/src/app/deepinfer"
KEY = "test"


class Answers(http.server.BaseHTTPRequestHandler):
    """Answers every POST with `content`."""
    content = b""
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("content-length", str(len(self.content)))
        self.end_headers()
        self.wfile.write(self.content)

    def log_message(self, *_):
        pass


def types_by_name(union):
    """The classes of an SDK's event union by the event type they stand for."""
    members = typing.get_args(typing.get_args(union)[0])
    return {typing.get_args(m.model_fields["type"].annotation)[0]: m for m in members}


def with_cache_writes(value):
    """Adds the one field that these types require and DeepSeek's API does not have: writing its cache costs nothing."""
    usage = value.get("response", value).get("usage")
    if usage:
        usage["input_tokens_details"].setdefault("cache_write_tokens", 0)
    return value


def plain(model):
    return json.loads(model.to_json())


class SdkTest(unittest.TestCase):
    maxDiff = None

    @classmethod
    def setUpClass(cls):
        cls.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers)
        threading.Thread(target=cls.server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{cls.server.server_port}"
        cls.openai = openai.OpenAI(api_key=KEY, base_url=url, max_retries=0)
        cls.anthropic = anthropic.Anthropic(api_key=KEY, base_url=url, max_retries=0)

    @classmethod
    def tearDownClass(cls):
        cls.openai.close()
        cls.anthropic.close()
        cls.server.shutdown()
        cls.server.server_close()

    def check_each(self, api, check):
        """Calls check(stream, whole) for every case of an API, with the server answering with the stream."""
        mine = [case for case in sdk_outputs.cases() if case[1] == api]
        self.assertGreater(len(mine), 10)
        for name, _, body, text, finish in mine:
            with self.subTest(name):
                Answers.content = sdk_outputs.decode(PROGRAM, api, body, text, finish, True)
                check(Answers.content, sdk_outputs.decode(PROGRAM, api, body, text, finish, False))

    def test_chat_completions(self):
        from openai.types.chat import ChatCompletion, ChatCompletionChunk

        def check(stream, whole):
            *chunks, done = sdk_outputs.frames(stream)
            self.assertEqual(done, (None, "[DONE]"))
            for name, data in chunks:
                self.assertIsNone(name)
                ChatCompletionChunk.model_validate_json(data)
            expected = plain(ChatCompletion.model_validate_json(whole))

            content, reasoning, calls, finish, usage = "", "", [], None, None
            for chunk in self.openai.chat.completions.create(model="m", messages=[], stream=True):
                choice = chunk.choices[0]
                content += choice.delta.content or ""
                reasoning += getattr(choice.delta, "reasoning_content", None) or ""
                for call in choice.delta.tool_calls or []:
                    if call.id:
                        calls.append([call.id, call.function.name, ""])
                    calls[call.index][2] += call.function.arguments
                finish, usage = choice.finish_reason or finish, chunk.usage or usage
            choice = expected["choices"][0]
            self.assertEqual(content, choice["message"]["content"])
            self.assertEqual(reasoning, choice["message"].get("reasoning_content", ""))
            self.assertEqual(calls, [[c["id"], c["function"]["name"], c["function"]["arguments"]]
                                     for c in choice["message"].get("tool_calls") or []])
            self.assertEqual(finish, choice["finish_reason"])
            self.assertEqual(plain(usage), expected["usage"])

        self.check_each("chat", check)

    def test_responses(self):
        from openai.types.responses import Response, ResponseStreamEvent
        types = types_by_name(ResponseStreamEvent)

        def check(stream, whole):
            for number, (name, data) in enumerate(sdk_outputs.frames(stream)):
                event = types[name].model_validate(with_cache_writes(json.loads(data)))
                self.assertEqual((event.type, event.sequence_number), (name, number))
            expected = plain(Response.model_validate(with_cache_writes(json.loads(whole))))
            last = None
            for event in self.openai.responses.create(model="m", input="q", stream=True):
                last = event
            self.assertEqual(with_cache_writes(plain(last.response)), expected)

        self.check_each("responses", check)

    def test_responses_stream_helper(self):
        def check(stream, whole):
            if json.loads(whole)["status"] != "completed":
                return  # the helper gives a final response for completed ones only
            with self.openai.responses.stream(model="m", input="q") as events:
                deltas = ""
                for event in events:
                    if event.type == "response.output_text.delta":
                        deltas += event.delta
                final = events.get_final_response()
            self.assertEqual(final.output_text, deltas)
            self.assertEqual([i["type"] for i in plain(final)["output"]],
                             [i["type"] for i in json.loads(whole)["output"]])

        self.check_each("responses", check)

    def test_messages(self):
        from anthropic.types import Message, RawMessageStreamEvent
        types = types_by_name(RawMessageStreamEvent)

        def check(stream, whole):
            for name, data in sdk_outputs.frames(stream):
                if name != "ping":  # the SDK drops pings before its types
                    self.assertEqual(types[name].model_validate_json(data).type, name)
            expected = plain(Message.model_validate_json(whole))
            with self.anthropic.messages.stream(model="m", max_tokens=9, messages=[]) as events:
                final = plain(events.get_final_message())
            for key in ("id", "role", "model", "stop_reason", "stop_sequence", "usage"):
                self.assertEqual(final.get(key), expected.get(key), key)
            blocks = [[{k: b.get(k)
                        for k in ("type", "text", "thinking", "signature", "id", "name", "input")}
                       for b in m["content"]]
                      for m in (final, expected)]
            self.assertEqual(*blocks)

        self.check_each("messages", check)


if __name__ == "__main__":
    unittest.main()
