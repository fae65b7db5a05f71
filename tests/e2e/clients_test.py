"""OpenAI's official Python client against `deepinfer serve` with the bundled model: chat, responses, streams, full tool
loops, structured output, state, token counts, typed errors; keys with Anthropic's as well. The clients are installed
below build/; skipped where they cannot be had."""

import asyncio
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import sdk_install  # noqa: E402

try:
    import anthropic
    import openai
except ImportError:
    sdk_install.enter_python(__file__)

from clients_case import CITY, WEATHER, RESULT, QUESTION, ROSA, OFF, Person, user, start_server  # noqa: E402
from program import PROGRAM  # noqa: E402
from server import Server  # noqa: E402


def setUpModule():
    global server, client, MODEL
    server = start_server()
    client = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0, timeout=240)
    MODEL = client.models.list().data[0].id


def tearDownModule():
    client.close()
    server.stop()


class OpenAiTest(unittest.TestCase):
    maxDiff = None

    def chat(self, text="How do I make tea?", **more):
        return client.chat.completions.create(
            **{"model": MODEL, "messages": user(text), "temperature": 0, "extra_body": OFF, **more}
        )

    def test_models(self):
        self.assertEqual(client.models.retrieve(MODEL).id, MODEL)
        with self.assertRaises(openai.NotFoundError):
            client.models.retrieve("no-such-model")

    def test_chat(self):
        answer = self.chat()
        self.assertEqual(answer.object, "chat.completion")
        self.assertEqual(answer.choices[0].finish_reason, "stop")
        self.assertIn("water", answer.choices[0].message.content)
        self.assertEqual(answer.usage.total_tokens, answer.usage.prompt_tokens + answer.usage.completion_tokens)
        self.assertEqual(self.chat().choices[0].message.content, answer.choices[0].message.content)

    def test_stream_is_the_whole_answer(self):
        whole = self.chat()
        text, finish, usage = "", None, None
        for chunk in self.chat(stream=True, stream_options={"include_usage": True}):
            for choice in chunk.choices:
                text, finish = text + (choice.delta.content or ""), choice.finish_reason or finish
            usage = chunk.usage or usage
        self.assertEqual((text, finish), (whole.choices[0].message.content, "stop"))
        self.assertEqual(
            (usage.prompt_tokens, usage.completion_tokens), (whole.usage.prompt_tokens, whole.usage.completion_tokens)
        )

    def test_many_at_once(self):
        async def run():
            async with openai.AsyncOpenAI(
                base_url=server.url + "/v1", api_key="none", max_retries=0, timeout=240
            ) as many:
                return await asyncio.gather(
                    *[
                        many.chat.completions.create(
                            model=MODEL,
                            messages=user("How do I make tea?"),
                            temperature=1,
                            seed=i,
                            max_tokens=12,
                            extra_body=OFF,
                        )
                        for i in range(16)
                    ]
                )

        answers = [a.choices[0].message.content for a in asyncio.run(run())]
        alone = [self.chat(temperature=1, seed=i, max_tokens=12).choices[0].message.content for i in range(16)]
        self.assertEqual(answers, alone)  # same seed, same tokens, in any company
        self.assertGreater(len(set(answers)), 1)

    def test_thinking(self):
        answer = (
            self.chat(
                "Please tell me a short story about a storm. End with the moral.",
                extra_body={"thinking": {"type": "enabled"}},
                max_tokens=400,
            )
            .choices[0]
            .message
        )
        self.assertTrue(answer.reasoning_content)
        self.assertNotIn(answer.reasoning_content, answer.content)
        self.assertFalse(getattr(self.chat().choices[0].message, "reasoning_content", None))

    def test_stop_limit_choices_and_logprobs(self):
        whole = self.chat().choices[0].message.content
        word = whole.split()[3]
        cut = self.chat(stop=[word]).choices[0]
        self.assertEqual((cut.message.content, cut.finish_reason), (whole[: whole.index(word)], "stop"))
        short = self.chat(max_tokens=5)
        self.assertEqual((short.choices[0].finish_reason, short.usage.completion_tokens), ("length", 5))
        several = self.chat(n=3, temperature=1, seed=5, max_tokens=10).choices
        self.assertEqual([c.index for c in several], [0, 1, 2])
        self.assertGreater(len({c.message.content for c in several}), 1)
        likely = self.chat(logprobs=True, top_logprobs=3, max_tokens=8).choices[0]
        self.assertEqual("".join(t.token for t in likely.logprobs.content), likely.message.content)
        for token in likely.logprobs.content:
            self.assertEqual(len(token.top_logprobs), 3)
            self.assertEqual(token.token, max(token.top_logprobs, key=lambda t: t.logprob).token)  # greedy

    def test_tool_loop(self):
        messages = user(QUESTION)
        first = client.chat.completions.create(
            model=MODEL, messages=messages, tools=[WEATHER], temperature=0, extra_body=OFF
        )
        call = first.choices[0].message.tool_calls[0]
        self.assertEqual(
            (first.choices[0].finish_reason, call.function.name, json.loads(call.function.arguments)["city"]),
            ("tool_calls", "get_weather", "Paris"),
        )
        messages += [first.choices[0].message, {"role": "tool", "tool_call_id": call.id, "content": RESULT}]
        last = client.chat.completions.create(
            model=MODEL, messages=messages, tools=[WEATHER], temperature=0, extra_body=OFF
        )
        self.assertEqual(last.choices[0].finish_reason, "stop")
        self.assertIn("18", last.choices[0].message.content)

    def test_streamed_tools_by_the_helper(self):
        whole = client.chat.completions.create(
            model=MODEL, messages=user(QUESTION), tools=[WEATHER], temperature=0, extra_body=OFF
        )
        with client.chat.completions.stream(
            model=MODEL, messages=user(QUESTION), tools=[WEATHER], temperature=0, extra_body=OFF
        ) as events:
            kinds = {event.type for event in events}
            final = events.get_final_completion()
        self.assertIn("tool_calls.function.arguments.delta", kinds)
        self.assertEqual(
            [(c.function.name, c.function.arguments) for c in final.choices[0].message.tool_calls],
            [(c.function.name, c.function.arguments) for c in whole.choices[0].message.tool_calls],
        )

    def test_tool_choice(self):
        forced = self.chat(
            "Hello!", tools=[WEATHER], tool_choice={"type": "function", "function": {"name": "get_weather"}}
        ).choices[0]
        self.assertEqual(forced.message.tool_calls[0].function.name, "get_weather")
        self.assertIn("city", json.loads(forced.message.tool_calls[0].function.arguments))
        self.assertFalse(self.chat(QUESTION, tools=[WEATHER], tool_choice="none").choices[0].message.tool_calls)

    def test_structured_output(self):
        parsed = (
            client.chat.completions.parse(
                model=MODEL, messages=user(ROSA), response_format=Person, temperature=0, extra_body=OFF
            )
            .choices[0]
            .message.parsed
        )
        self.assertEqual(parsed, Person(name="Rosa", age=34, city="Lisbon"))
        with client.chat.completions.stream(
            model=MODEL, messages=user(ROSA), response_format=Person, temperature=0, extra_body=OFF
        ) as events:
            for _ in events:
                pass
            self.assertEqual(events.get_final_completion().choices[0].message.parsed, parsed)
        json.loads(self.chat(ROSA, response_format={"type": "json_object"}).choices[0].message.content)
        for seed in range(3):  # far from what it would say by itself
            Person.model_validate_json(
                self.chat(
                    "Tell me a story.",
                    temperature=1.5,
                    seed=seed,
                    response_format={
                        "type": "json_schema",
                        "json_schema": {"name": "person", "strict": True, "schema": {**Person.model_json_schema()}},
                    },
                )
                .choices[0]
                .message.content
            )

    def test_completions(self):
        answer = client.completions.create(model=MODEL, prompt="Once upon a time", max_tokens=12, temperature=0)
        self.assertEqual(
            (answer.object, answer.choices[0].finish_reason, answer.usage.completion_tokens),
            ("text_completion", "length", 12),
        )
        self.assertEqual(
            "".join(
                c.choices[0].text
                for c in client.completions.create(
                    model=MODEL, prompt="Once upon a time", max_tokens=12, temperature=0, stream=True
                )
                if c.choices
            ),
            answer.choices[0].text,
        )

    def test_prompts_may_be_token_ids_and_lists(self):
        ask = lambda prompt: client.completions.create(model=MODEL, prompt=prompt, max_tokens=8, temperature=0)
        text = ask("Once upon a time").choices[0].text
        ids = [0] + client.post("/tokenize", body={"prompt": "Once upon a time"}, cast_to=object)["tokens"]
        for prompt in (["Once upon a time"], ids, [ids]):
            self.assertEqual(ask(prompt).choices[0].text, text)
        several = ask(["Tell", ids, "Once upon a time"])
        self.assertEqual([choice.index for choice in several.choices], [0, 1, 2])
        self.assertEqual([choice.text == text for choice in several.choices], [False, True, True])
        for bad, param in (([], "prompt"), (["a", []], "prompt[1]"), (["a", 1], "prompt[1]"), ([1 << 20], "prompt")):
            with self.assertRaises(openai.BadRequestError) as caught:
                ask(bad)
            self.assertEqual(caught.exception.param, param)

    def test_errors_are_typed(self):
        def refused(kind, param=None, **request):
            with self.assertRaises(kind) as caught:
                client.chat.completions.create(**{"model": MODEL, "messages": user("Hi"), "max_tokens": 1, **request})
            self.assertTrue(caught.exception.body["message"])
            self.assertTrue(caught.exception.request_id)
            if param:
                self.assertEqual(caught.exception.param, param)
            return caught.exception

        refused(openai.BadRequestError, "temperature", temperature=9)
        refused(openai.BadRequestError, messages=[])
        refused(openai.BadRequestError, messages=[{"role": "tool", "tool_call_id": "x", "content": "y"}])
        refused(
            openai.BadRequestError,
            tools=[{"type": "function", "function": {"name": "a b", "parameters": {"type": "object"}}}],
        )
        refused(
            openai.BadRequestError,
            response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "strange"}}},
        )
        refused(openai.BadRequestError, messages=user("word " * 40000))
        refused((openai.BadRequestError, openai.NotFoundError), model="no-such-model")
        with self.assertRaises(openai.NotFoundError):
            client.get("/no/such/path", cast_to=object)

    def test_a_client_that_leaves_frees_its_place(self):
        stream = self.chat(
            "Write a story for children about a little train.", temperature=1, max_tokens=3000, stream=True
        )
        next(iter(stream))
        stream.close()
        self.assertTrue(self.chat(max_tokens=3).choices[0].message.content)


class ResponsesTest(unittest.TestCase):
    maxDiff = None

    def respond(self, text="How do I make tea?", **more):
        return client.responses.create(
            **{"model": MODEL, "input": text, "temperature": 0, "reasoning": {"effort": "none"}, **more}
        )

    def test_whole_and_streamed(self):
        whole = self.respond()
        self.assertEqual((whole.object, whole.status), ("response", "completed"))
        self.assertIn("water", whole.output_text)
        text, last = "", None
        for event in self.respond(stream=True):
            if event.type == "response.output_text.delta":
                text += event.delta
            last = event
        self.assertEqual(
            (last.type, text, last.response.output_text), ("response.completed", whole.output_text, whole.output_text)
        )
        self.assertEqual(self.respond(max_output_tokens=4).incomplete_details.reason, "max_output_tokens")

    def test_token_count_is_what_is_billed(self):
        first = client.responses.create(model=MODEL, input="Hello", max_output_tokens=16)
        asked = {"model": MODEL, "input": "And how do I make tea?", "previous_response_id": first.id}
        counted = client.responses.input_tokens.count(**asked)
        self.assertEqual(counted.object, "response.input_tokens")
        self.assertEqual(
            client.responses.create(**asked, max_output_tokens=16).usage.input_tokens, counted.input_tokens)
        self.assertGreater(counted.input_tokens, first.usage.input_tokens)

    def test_state(self):
        first = self.respond("Who are you?")
        second = self.respond("What can you do?", previous_response_id=first.id)
        self.assertEqual(second.previous_response_id, first.id)
        spelled = self.respond(
            [*user("Who are you?"), {"role": "assistant", "content": first.output_text}, *user("What can you do?")]
        )
        self.assertEqual(second.output_text, spelled.output_text)  # the same conversation, stored or sent
        self.assertEqual(second.usage.input_tokens, spelled.usage.input_tokens)
        again = client.responses.retrieve(first.id)
        self.assertEqual((again.id, again.output_text, again.status), (first.id, first.output_text, "completed"))
        items = client.responses.input_items.list(first.id).data
        self.assertEqual([(i.type, i.role) for i in items], [("message", "user")])
        client.responses.delete(first.id)
        for act in (lambda: client.responses.retrieve(first.id), lambda: client.responses.delete(first.id)):
            with self.assertRaises(openai.NotFoundError):
                act()
        self.assertFalse(self.respond(store=False).store)

    def test_tool_loop(self):
        tool = {
            "type": "function",
            "name": "get_weather",
            "description": "Get the current weather for a city.",
            "parameters": CITY,
        }
        first = self.respond(QUESTION, tools=[tool])
        call = next(item for item in first.output if item.type == "function_call")
        self.assertEqual((call.name, json.loads(call.arguments)["city"]), ("get_weather", "Paris"))
        answer = {"type": "function_call_output", "call_id": call.call_id, "output": RESULT}
        stored = self.respond([answer], previous_response_id=first.id, tools=[tool])
        self.assertIn("18", stored.output_text)
        sent = self.respond(
            [*user(QUESTION), *[item.model_dump(exclude_none=True) for item in first.output], answer], tools=[tool]
        )
        self.assertEqual(sent.output_text, stored.output_text)

    def test_reasoning_travels_sealed(self):
        tool = {
            "type": "function", "name": "get_weather", "description": "Get the current weather for a city.",
            "parameters": CITY}
        more = {
            "tools": [tool], "reasoning": {"effort": "high"}, "store": False,
            "include": ["reasoning.encrypted_content"]}
        first = self.respond(QUESTION, **more)
        thought = next(item for item in first.output if item.type == "reasoning")
        call = next(item for item in first.output if item.type == "function_call")
        words = thought.content[0].text
        self.assertGreater(len(words), 10)
        self.assertNotIn(words, thought.encrypted_content)
        streamed = [
            event.response
            for event in self.respond(QUESTION, stream=True, **more)
            if event.type == "response.completed"]
        self.assertTrue(next(item for item in streamed[0].output if item.type == "reasoning").encrypted_content)

        def go_on(blob=None, at=client, **item):
            sealed = {
                "type": "reasoning", "id": thought.id, "summary": [], **({"encrypted_content": blob} if blob else {}),
                **item}
            answer = {"type": "function_call_output", "call_id": call.call_id, "output": RESULT}
            turn = [*user(QUESTION), sealed, call.model_dump(exclude_none=True), answer]
            return at.responses.create(model=MODEL, input=turn, temperature=0, **more)

        in_words = go_on(content=[{"type": "reasoning_text", "text": words}])
        sealed, without = go_on(thought.encrypted_content), go_on()
        self.assertEqual((sealed.output_text, sealed.usage.input_tokens),
                         (in_words.output_text, in_words.usage.input_tokens))
        self.assertGreater(sealed.usage.input_tokens, without.usage.input_tokens)  # the model reads it again
        self.assertIn("18", sealed.output_text)
        blob = thought.encrypted_content
        for changed in (blob[:-4] + ("AAAA" if blob[-4:] != "AAAA" else "BBBB"), blob[1:], blob[:40], "x", blob + blob):
            with self.assertRaises(openai.BadRequestError) as caught:
                go_on(changed)
            self.assertEqual((caught.exception.code, caught.exception.param),
                             ("invalid_encrypted_content", "input[1].encrypted_content"))
        self.check_keys_of_reasoning(go_on, blob, more)

    def check_keys_of_reasoning(self, go_on, blob, more):
        with tempfile.TemporaryDirectory() as home:
            keys = f"{home}/seal.txt"
            with open(keys, "w") as file:
                print("ab" * 32, file=file)
            sealed = None
            for _ in range(2):  # a lasting key opens what it sealed before a restart
                with Server("--seal-keys", keys) as other:
                    at = openai.OpenAI(base_url=other.url + "/v1", api_key="none", max_retries=0)
                    with self.assertRaises(openai.BadRequestError):  # another service's
                        go_on(blob, at=at)
                    if sealed:
                        self.assertEqual(go_on(sealed, at=at).output_text, go_on(blob).output_text)
                    first = at.responses.create(model=MODEL, input=QUESTION, temperature=0, **more)
                    sealed = next(item for item in first.output if item.type == "reasoning").encrypted_content

    def test_structured_output(self):
        parsed = client.responses.parse(
            model=MODEL, input=ROSA, text_format=Person, temperature=0, reasoning={"effort": "none"}
        )
        self.assertEqual(parsed.output_parsed, Person(name="Rosa", age=34, city="Lisbon"))

    def test_errors_are_typed(self):
        with self.assertRaises(openai.BadRequestError):
            self.respond(temperature=9)
        with self.assertRaises((openai.NotFoundError, openai.BadRequestError)):
            self.respond(previous_response_id="resp_none")


class KeysTest(unittest.TestCase):
    def test_keys_and_limits_are_typed_errors(self):
        with tempfile.TemporaryDirectory() as home:
            file = f"{home}/keys.jsonl"
            add = subprocess.run(
                [PROGRAM, "keys", "add", "alice", "--keys", file, "--tokens-per-minute", "5"],
                capture_output=True,
                text=True,
                timeout=240,
            )
            self.assertEqual(add.returncode, 0, add.stderr)
            key = add.stdout.split()[-1]
            with Server("--keys", file) as keyed:
                with self.assertRaises(openai.AuthenticationError):
                    openai.OpenAI(base_url=keyed.url + "/v1", api_key="wrong", max_retries=0).models.list()
                with self.assertRaises(anthropic.AuthenticationError):
                    anthropic.Anthropic(base_url=keyed.url, api_key="wrong", max_retries=0).messages.create(
                        model=MODEL, max_tokens=1, messages=user("Hi")
                    )
                mine = openai.OpenAI(base_url=keyed.url + "/v1", api_key=key, max_retries=0)
                mine.chat.completions.create(
                    model=MODEL, messages=user("How do I make tea?"), max_tokens=40, extra_body=OFF
                )
                with self.assertRaises(openai.RateLimitError) as caught:
                    mine.chat.completions.create(model=MODEL, messages=user("Hi"), max_tokens=1)
                self.assertGreater(float(caught.exception.response.headers["retry-after"]), 0)
                with self.assertRaises(anthropic.RateLimitError):
                    anthropic.Anthropic(base_url=keyed.url, api_key=key, max_retries=0).messages.create(
                        model=MODEL, max_tokens=1, messages=user("Hi")
                    )


if __name__ == "__main__":
    unittest.main()
