"""A coding agent's session of 30 tool turns (8 without DEEPINFER_TEST_ALL=1) by the official Python clients against
`deepinfer serve`: streamed, the whole history sent each time, the turns before it found in the cache. Skipped where the
clients cannot be had."""

import json
import os
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import sdk_install  # noqa: E402

try:
    import anthropic
    import openai
except ImportError:
    sdk_install.enter_python(__file__)

from program import SANITIZED  # noqa: E402
from server import Server  # noqa: E402

TURNS = 30 if os.environ.get("DEEPINFER_TEST_ALL") else 8
OFF = {"thinking": {"type": "disabled"}}


def setUpModule():
    global server, client, claude, MODEL
    if SANITIZED:
        raise unittest.SkipTest("needs a build without sanitizers")
    server = Server("--context", "32768")
    client = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0, timeout=240)
    claude = anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0, timeout=240)
    MODEL = client.models.list().data[0].id


def tearDownModule():
    client.close()
    claude.close()
    server.stop()


def user(text):
    return [{"role": "user", "content": text}]


class Workspace:
    """What a coding agent works on: files in memory. Each tool answers with a short text."""

    def __init__(self):
        self.files = {"main.py": "print('hello')\n"}

    def run(self, name, arguments):
        path = arguments.get("path", "")
        if name == "list_files":
            return json.dumps(sorted(self.files)[:8])
        if name == "read_file":
            return self.files.get(path, "no such file")[:80]
        if name == "write_file":
            self.files[path[:40]] = arguments["text"][:80]
            return "ok"
        return f"{len(self.files)} files, exit code 0"


def agent_tools():
    text = {"type": "string", "maxLength": 24}
    make = lambda **p: {"type": "object", "properties": p, "required": list(p), "additionalProperties": False}
    return {
        "list_files": make(),
        "read_file": make(path=text),
        "write_file": make(path=text, text=text),
        "run_tests": make(verbose={"type": "boolean"}),
    }


class AgentTest(unittest.TestCase):
    """The model is told which tool to call (it is too small to plan); all else is as an agent does it: streamed, with
    the whole history each time."""

    def check(self, prompts, cached, ids):
        self.assertEqual(len(ids), TURNS)
        self.assertEqual(len(set(ids)), TURNS)
        self.assertEqual(prompts, sorted(prompts))
        for before, hit in zip(prompts, cached[1:]):
            self.assertGreaterEqual(
                hit, before // 128 * 128 - 256
            )  # the turn before comes from the cache, but for its last blocks

    def test_thirty_turns_openai(self):
        work, schemas = Workspace(), agent_tools()
        tools = [
            {
                "type": "function",
                "function": {"name": n, "description": n.replace("_", " "), "parameters": s, "strict": True},
            }
            for n, s in schemas.items()
        ]
        messages = [
            {"role": "system", "content": "You are a coding agent. Use the tools."},
            *user("Add a greeting to main.py and run the tests."),
        ]
        prompts, cached, ids = [], [], []
        for turn in range(TURNS):
            name = list(schemas)[turn % len(schemas)]
            with client.chat.completions.stream(
                model=MODEL,
                messages=messages,
                tools=tools,
                temperature=0.5,
                seed=turn,
                max_tokens=200,
                extra_body=OFF,
                parallel_tool_calls=False,
                tool_choice={"type": "function", "function": {"name": name}},
                stream_options={"include_usage": True},
            ) as events:
                answer = events.get_final_completion()
            message = answer.choices[0].message
            self.assertEqual([c.function.name for c in message.tool_calls], [name])
            call = message.tool_calls[0]
            messages += [
                {
                    "role": "assistant",
                    "content": message.content or "",
                    "tool_calls": [
                        {
                            "id": call.id,
                            "type": "function",
                            "function": {"name": name, "arguments": call.function.arguments},
                        }
                    ],
                },
                {
                    "role": "tool",
                    "tool_call_id": call.id,
                    "content": work.run(name, json.loads(call.function.arguments)),
                },
            ]
            prompts.append(answer.usage.prompt_tokens)
            cached.append(answer.usage.prompt_tokens_details.cached_tokens)
            ids.append(call.id)
        self.check(prompts, cached, ids)
        last = client.chat.completions.create(
            model=MODEL,
            messages=messages,
            tools=tools,
            tool_choice="none",
            temperature=0,
            max_tokens=50,
            extra_body=OFF,
        )
        self.assertFalse(last.choices[0].message.tool_calls)

    def test_thirty_turns_anthropic(self):
        work, schemas = Workspace(), agent_tools()
        tools = [
            {"name": n, "description": n.replace("_", " "), "input_schema": s, "strict": True}
            for n, s in schemas.items()
        ]
        messages = user("Add a greeting to main.py and run the tests.")
        prompts, cached, ids = [], [], []
        for turn in range(TURNS):
            name = list(schemas)[turn % len(schemas)]
            with claude.messages.stream(
                model=MODEL,
                system="You are a coding agent. Use the tools.",
                messages=messages,
                tools=tools,
                max_tokens=200,
                extra_body={"temperature": 0.5},
                thinking={"type": "disabled"},
                tool_choice={"type": "tool", "name": name, "disable_parallel_tool_use": True},
            ) as events:
                answer = events.get_final_message()
            calls = [b for b in answer.content if b.type == "tool_use"]
            self.assertEqual([(c.name, answer.stop_reason) for c in calls], [(name, "tool_use")])
            messages += [
                {"role": "assistant", "content": answer.content},
                {
                    "role": "user",
                    "content": [
                        {"type": "tool_result", "tool_use_id": calls[0].id, "content": work.run(name, calls[0].input)}
                    ],
                },
            ]
            cached.append(answer.usage.cache_read_input_tokens or 0)
            prompts.append(answer.usage.input_tokens + cached[-1])
            ids.append(calls[0].id)
        self.check(prompts, cached, ids)


if __name__ == "__main__":
    unittest.main()
