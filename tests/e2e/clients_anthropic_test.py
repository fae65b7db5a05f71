"""Anthropic's official Python client against `deepinfer serve` with the bundled model: messages, streams, thinking, a
full tool loop, structured output, token counts, typed errors. The client is installed below build/; skipped where it
cannot be had."""

import pathlib
import sys
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import sdk_install  # noqa: E402

try:
    import anthropic
except ImportError:
    sdk_install.enter_python(__file__)

from clients_case import WEATHER_BLOCK, RESULT, QUESTION, ROSA, GREEDY, Person, user, start_server  # noqa: E402

MODEL = "deepseek-v4.1-flash"


def setUpModule():
    global server, claude
    server = start_server()
    claude = anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0, timeout=240)


def tearDownModule():
    claude.close()
    server.stop()


class AnthropicTest(unittest.TestCase):
    maxDiff = None

    def message(self, text="How do I make tea?", **more):
        return claude.messages.create(
            **{
                "model": MODEL,
                "max_tokens": 200,
                "messages": user(text),
                "extra_body": GREEDY,
                "thinking": {"type": "disabled"},
                **more,
            }
        )

    def test_message_and_stream(self):
        whole = self.message()
        self.assertEqual((whole.type, whole.role, whole.stop_reason), ("message", "assistant", "end_turn"))
        self.assertIn("water", whole.content[0].text)
        with claude.messages.stream(
            model=MODEL,
            max_tokens=200,
            messages=user("How do I make tea?"),
            extra_body=GREEDY,
            thinking={"type": "disabled"},
        ) as events:
            text = "".join(events.text_stream)
            final = events.get_final_message()
        self.assertEqual((text, final.content[0].text, final.stop_reason), (whole.content[0].text,) * 2 + ("end_turn",))
        self.assertEqual(final.usage.output_tokens, whole.usage.output_tokens)
        self.assertEqual(self.message(max_tokens=4).stop_reason, "max_tokens")
        stop = whole.content[0].text.split()[3]
        cut = self.message(stop_sequences=[stop])
        self.assertEqual((cut.stop_reason, cut.stop_sequence), ("stop_sequence", stop))

    def test_thinking(self):
        answer = self.message(
            "Please tell me a short story about a storm. End with the moral.",
            thinking={"type": "enabled", "budget_tokens": 1024},
            max_tokens=2000,
        )
        self.assertEqual([block.type for block in answer.content], ["thinking", "text"])
        again = self.message(
            "unused",
            messages=[*user("Tell me a story."), {"role": "assistant", "content": answer.content}, *user("Thank you!")],
        )
        self.assertEqual(again.stop_reason, "end_turn")  # a thinking block comes back unchanged

    def test_tool_loop(self):
        first = self.message(QUESTION, tools=[WEATHER_BLOCK])
        call = next(b for b in first.content if b.type == "tool_use")
        self.assertEqual((first.stop_reason, call.name, call.input["city"]), ("tool_use", "get_weather", "Paris"))
        with claude.messages.stream(
            model=MODEL,
            max_tokens=200,
            messages=user(QUESTION),
            tools=[WEATHER_BLOCK],
            extra_body=GREEDY,
            thinking={"type": "disabled"},
        ) as events:
            streamed = events.get_final_message()
        self.assertEqual(
            [(b.name, b.input) for b in streamed.content if b.type == "tool_use"], [(call.name, call.input)]
        )
        last = self.message(
            "unused",
            tools=[WEATHER_BLOCK],
            messages=[
                *user(QUESTION),
                {"role": "assistant", "content": first.content},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": RESULT}]},
            ],
        )
        self.assertEqual(last.stop_reason, "end_turn")
        self.assertIn("18", last.content[0].text)

    def test_structured_output(self):
        answer = self.message(
            ROSA, output_config={"format": {"type": "json_schema", "schema": Person.model_json_schema()}}
        )
        self.assertEqual(Person.model_validate_json(answer.content[0].text), Person(name="Rosa", age=34, city="Lisbon"))
        parsed = claude.messages.parse(
            model=MODEL,
            max_tokens=200,
            messages=user(ROSA),
            output_format=Person,
            extra_body=GREEDY,
            thinking={"type": "disabled"},
        )
        self.assertEqual(parsed.parsed_output, Person(name="Rosa", age=34, city="Lisbon"))

    def test_models_and_request_ids(self):
        page = claude.models.list()
        self.assertEqual([m.type for m in page.data], ["model"])
        self.assertEqual(claude.models.retrieve(page.data[0].id).display_name, page.data[0].id)
        self.assertLess(abs(page.data[0].created_at.timestamp() - time.time()), 3600)
        with self.assertRaises(anthropic.NotFoundError) as caught:
            claude.models.retrieve("none")
        self.assertTrue(caught.exception.request_id.startswith("req_"))
        message = claude.messages.create(model=MODEL, max_tokens=2, messages=user("Hello"))
        self.assertTrue(message._request_id.startswith("req_"))

    def test_token_count_is_what_is_billed(self):
        for request in (
            {"messages": user("How do I make tea?")},
            {"messages": user(QUESTION), "tools": [WEATHER_BLOCK], "system": "Be brief."},
        ):
            count = claude.messages.count_tokens(model=MODEL, thinking={"type": "disabled"}, **request).input_tokens
            usage = claude.messages.create(model=MODEL, max_tokens=1, thinking={"type": "disabled"}, **request).usage
            self.assertEqual(count, usage.input_tokens + (usage.cache_read_input_tokens or 0))

    def test_errors_are_typed(self):
        def refused(kind, **request):
            with self.assertRaises(kind) as caught:
                claude.messages.create(**{"model": MODEL, "max_tokens": 1, "messages": user("Hi"), **request})
            self.assertEqual(caught.exception.body["type"], "error")
            self.assertTrue(caught.exception.body["error"]["message"])

        refused(anthropic.BadRequestError, extra_body={"temperature": 9})
        refused(anthropic.BadRequestError, messages=[])
        refused(
            anthropic.BadRequestError,
            messages=[
                *user("Hi"),
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "x", "content": "y"}]},
            ],
        )
        refused((anthropic.BadRequestError, anthropic.NotFoundError), model="no-such-model")


if __name__ == "__main__":
    unittest.main()
