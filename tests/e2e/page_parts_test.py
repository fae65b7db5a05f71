"""The page before a service that misbehaves: Markdown and attacks in model text, errors as sentences, keys, broken
streams, import and export. Needs Chromium."""

import json
import os
import pathlib
import socket
import unittest

from page_case import StubPageTest
from page_stub import USAGE, chunk, say, settle

ALL = bool(os.environ.get("DEEPINFER_TEST_ALL"))
DATA = pathlib.Path(__file__).resolve().parents[1] / "data" / "page"


def conversation(messages, id="abc", title="Imported"):
    """A conversation as the page keeps it: messages are (role, text), one after the other."""
    made, parent = {}, None
    for number, (role, text) in enumerate(messages):
        key = f"{id}m{number}"
        made[key] = {"id": key, "parent": parent, "role": role, "created": number, "content": text, "finish": "stop"}
        parent = key
    return {
        "id": id,
        "title": title,
        "named": True,
        "created": 1,
        "updated": 1,
        "settings": {},
        "messages": made,
        "chosen": {},
    }


def export(*conversations):
    return {"format": "deepinfer.conversations", "version": 1, "conversations": list(conversations)}


class PagePartsTest(StubPageTest):
    def test_who_types_before_the_next_frame_is_heard(self):
        """Frames come only when the test lets them, as on a machine that is late with them."""
        held = """(() => {
            let held = null;
            const frame = window.requestAnimationFrame.bind(window), timer = window.setTimeout.bind(window);
            window.requestAnimationFrame = (f) => (held ? held.push(f) : frame(f));
            window.setTimeout = (f, ms, ...more) => (
                held && ms >= 30 && ms <= 120 ? held.push(f) : timer(f, ms, ...more));
            window.hold = () => { held = []; };
            window.release = () => { const all = held; held = null; all.forEach((f) => f(performance.now())); };
            hold();
        })()"""
        page = self.browser.open(self.stub.url, script=held)
        self.addCleanup(page.close)
        page.wait("document.querySelector('#composer')")
        page.type("#composer", "How do I make tea?")
        page.press("Enter")
        page.wait("document.querySelector('.answer .actions') && !document.querySelector('.answer.growing')",
                  "an answer")
        page.press("e", "Ctrl", "Shift")
        page.wait("document.querySelector('dialog[open]')")
        page.press("Escape")
        page.wait("!document.querySelector('dialog[open]')")
        page.eval("release()")
        page.hover(".user .bubble")
        page.eval("hold()")
        page.eval("document.querySelector('.user [aria-label=\"Edit\"]').click()")
        page.wait("document.querySelector('.edit-box')")
        page.eval("document.querySelector('.edit-box textarea').select()")
        page.eval("release()")
        page.call("Input.insertText", text="Why is the sky blue?")
        page.press("Enter")
        page.wait("document.querySelector('.user .branches')?.textContent.includes('2/2')")
        self.assertEqual(page.text(".user .bubble"), "Why is the sky blue?")
        self.assertEqual((page.errors, page.console), ([], []))

    def test_markdown(self):
        cases = json.loads((DATA / "markdown.json").read_text())
        self.bring_in(
            export(
                conversation(
                    [("user" if i % 2 == 0 else "assistant", m) for c in cases for i, m in ((0, "q"), (1, c["text"]))]
                )
            )
        )
        self.page.wait(f"document.querySelectorAll('.answer .markdown').length === {len(cases)}")
        shown = self.page.eval("""[...document.querySelectorAll('.answer .markdown')].map((m) => ({
            html: m.innerHTML,
            code: [...m.querySelectorAll('figure.code')].map(
                (f) => [f.querySelector('figcaption span').textContent, f.querySelector('pre').textContent])}))""")
        for case, got in zip(cases, shown):
            with self.subTest(case["name"]):
                if "html" in case:
                    self.assertEqual(got["html"], case["html"])
                else:
                    self.assertEqual(got["code"], case["code"])

    def test_model_text_never_becomes_markup(self):
        attacks = json.loads((DATA / "attacks.json").read_text())
        messages = [(role, a) for a in attacks for role in ("user", "assistant")] + [
            ("user", "q"),
            ("assistant", "\n\n".join(attacks)),
        ]
        held = conversation(messages, title=attacks[1])
        for message in held["messages"].values():
            message["reasoning"] = message["content"]
            message["calls"] = [
                {"id": "<img src=x onerror=hacked=1>", "name": message["content"], "arguments": message["content"]}
            ]
        held["settings"] = {
            "system": attacks[1],
            "tools": [{"on": True, "text": attacks[1]}],
            "schema": attacks[1],
            "format": "schema",
            "stop": [attacks[1]],
        }
        self.bring_in(export(held))
        self.page.wait(f"document.querySelectorAll('.message').length === {len(messages)}")
        self.page.eval("document.querySelectorAll('details').forEach((d) => d.open = true)")
        for tab in ("tools", "format", "parameters"):
            self.page.click(f"#tab-{tab}")
        self.page.click('[aria-label="This request as code"]')
        self.page.wait("document.querySelector('dialog[open]')")
        # Again as it streams in, cut anywhere.
        self.page.press("Escape")
        self.page.click(".new-chat")
        text = "\n\n".join(attacks)
        self.stub.answer = lambda handler, _: handler.stream(
            *[chunk({"content": text[i : i + 7]}) for i in range(0, len(text), 7)],
            chunk({"content": ""}, "stop", USAGE),
            "[DONE]",
        )
        self.ask()
        self.answered()
        found = self.page.eval("""({
            hacked: window.hacked ?? null,
            strange: [...document.querySelectorAll('.message *')]
                .filter((e) => !(' a article blockquote br button code col dd del details div dl dt em figcaption ' +
                    'figure h1 h2 h3 h4 h5 h6 hr i input li ol p path pre section span strong summary svg table ' +
                    'tbody td th thead tr ul ').includes(' ' + e.tagName.toLowerCase() + ' '))
                .map((e) => e.outerHTML),
            handlers: [...document.querySelectorAll('*')].flatMap((e) => [...e.attributes]
                .filter((a) => /^on|style|formaction|srcdoc/i.test(a.name) && a.name !== 'style')
                .map((a) => e.outerHTML)),
            links: [...document.querySelectorAll('a:not(.skip)')]
                .map((a) => a.getAttribute('href')).filter((h) => !/^https?:\\/\\//.test(h))})""")
        self.assertEqual(found, {"hacked": None, "strange": [], "handlers": [], "links": []})

    def test_long_and_hostile_markdown_is_drawn(self):
        texts = ["*" * 20000, "[" * 20000, "> " * 5000 + "x", "_a*b" * 9000]
        if ALL:
            texts += [
                "`a" * 20000,
                "- " * 5000,
                "**a " * 8000,
                "|" * 20000 + "\n" + "|-" * 10000,
                "a\n\n" * 5000,
                "[a](" * 6000,
                "http://" * 5000,
            ]
        for text in texts:
            self.stub.answer = say(text)
            self.page.click(".new-chat")
            self.ask()
            self.answered()  # or never, where the work is quadratic or worse

    def test_errors_are_sentences(self):
        self.expect_console = ["400", "429", "500", "503", "ERR_"]
        error = {
            "message": "Invalid temperature value, the valid range of temperature is [0, 2]",
            "type": "invalid_request_error",
            "param": "temperature",
            "code": "invalid_request_error",
        }
        cases = [
            (
                lambda h, _: h.send_json(400, {"error": error}),
                "Invalid temperature value, the valid range of temperature is [0, 2].",
            ),
            (
                lambda h, _: h.send_json(429, {"error": {"message": "Too many requests"}}, retry_after="7"),
                "Too many requests. Try again in 7 seconds.",
            ),
            (lambda h, _: h.send(500, "text/html", b"<h1>oops</h1>"), "The server failed."),
            (lambda h, _: h.send_json(503, {}), "The server is busy or still starting."),
            (
                lambda h, _: h.stream(
                    chunk({"content": "Half"}), {"error": {"message": "the engine stopped", "type": "internal_error"}}
                ),
                "The engine stopped.",
            ),
            (lambda h, _: h.stream(chunk({"content": "Half"})), "The connection ended before the answer did."),
            (
                lambda h, _: h.connection.shutdown(socket.SHUT_RDWR),
                "The server cannot be reached. Is it still running?",
            ),
        ]
        for answer, sentence in cases:
            with self.subTest(sentence):
                self.stub.answer = answer
                self.page.click(".new-chat")
                self.ask()
                self.page.wait("document.querySelector('.fault')")
                self.assertEqual(self.page.text(".fault p"), sentence)
        self.page.click(".chats .open", at=6)  # the first: it says where
        self.page.wait("document.querySelector('.fault')")
        self.stub.answer = say("Fine now.")
        self.page.click(".fault .small-button")
        self.page.wait("document.querySelector('.answer')?.innerText.includes('Fine now.')")

    def test_half_an_answer_stays_when_it_breaks(self):
        self.stub.answer = lambda h, _: h.stream(chunk({"content": "Half of it"}))
        self.ask()
        self.page.wait("document.querySelector('.fault')")
        self.assertIn("Half of it", self.page.text(".answer"))

    def test_wants_a_key(self):
        self.expect_console = ["401"]
        self.stub.key = "sk-test"
        settle(self.page)
        self.page.reload()
        self.page.wait("document.querySelector('dialog[open]')")
        self.page.eval(
            "document.querySelector('dialog').close()")  # as browsers do on Escape where nobody has touched the page
        self.page.wait("!document.querySelector('dialog')")
        self.ask()
        self.page.wait("document.querySelector('dialog[open] input[type=password]')")
        self.page.type("dialog input[type=password]", "sk-test")
        self.page.click("dialog .primary")
        self.page.wait("!document.querySelector('dialog[open]') && document.querySelector('.model-name')")
        self.ask("Again")
        self.answered(2)
        self.page.click('[aria-label="This request as code"]')
        self.page.wait("document.querySelector('.snippet pre')")
        self.assertIn("$DEEPINFER_API_KEY", self.page.text(".snippet pre"))
        self.assertNotIn("sk-test", self.page.eval("document.documentElement.outerHTML"))
        self.assertIsNone(self.page.eval("localStorage.getItem('deepinfer.key')"))  # only where the reader asks for it

    def test_request_has_what_is_set_and_nothing_else(self):
        self.ask()
        self.answered()
        self.assertEqual(self.stub.bodies[-1],
                         {"model": "stub-model", "messages": [{"role": "user", "content": "Hi"}], "stream": True})
        self.page.fill('[aria-label="Temperature, exact value"]', "0.5")
        self.page.fill('[aria-label="Top P, exact value"]', "0.9")
        self.page.fill("textarea[aria-label='System prompt']", "Be brief.")
        self.page.type("#stop-text", "END")
        self.page.press("Enter")
        self.page.eval("document.querySelector('.more').open = true")
        for label, value in (
            ("Min P", "0.1"),
            ("Frequency penalty", "0.2"),
            ("Presence penalty", "0.3"),
            ("Repetition penalty", "1.1"),
        ):
            self.page.fill(f'[aria-label="{label}, exact value"]', value)
        for at, value in ((0, "64"), (1, "7")):
            self.page.eval(f"document.querySelectorAll('.pair input')[{at}].id = 'pair{at}'")
            self.page.fill(f"#pair{at}", value)
        self.page.eval("document.querySelector('.more > .field > input').id = 'topk'")
        self.page.fill("#topk", "40")
        self.page.click("input[name=thinking]", at=1)
        self.page.click("input[name=effort]", at=4)
        self.ask("And now?")
        self.answered(2)
        self.assertEqual(
            self.stub.bodies[-1],
            {
                "model": "stub-model",
                "stream": True,
                "temperature": 0.5,
                "top_p": 0.9,
                "top_k": 40,
                "min_p": 0.1,
                "frequency_penalty": 0.2,
                "presence_penalty": 0.3,
                "repetition_penalty": 1.1,
                "max_tokens": 64,
                "seed": 7,
                "stop": ["END"],
                "thinking": {"type": "enabled"},
                "reasoning_effort": "max",
                "messages": [
                    {"role": "system", "content": "Be brief."},
                    {"role": "user", "content": "Hi"},
                    {"role": "assistant", "content": "Hello there."},
                    {"role": "user", "content": "And now?"},
                ],
            },
        )

    def test_a_number_being_typed_outlives_what_else_is_drawn(self):
        for at, selector in enumerate(('[aria-label="Temperature, exact value"]', ".pair input")):
            self.page.type(selector, "1")
            self.page.eval(f"document.querySelectorAll('input[name=thinking]')[{at + 1}].click()"
                           )  # draws the fields, keeps the focus
            self.page.press("Enter")
        self.ask()
        self.answered()
        self.assertEqual((self.stub.bodies[-1]["temperature"], self.stub.bodies[-1]["max_tokens"]), (1, 1))

    def test_half_a_call_is_not_sent_back(self):
        def broken(handler, _):
            handler.stream(
                chunk(
                    {
                        "tool_calls": [
                            {
                                "index": 0,
                                "id": "c1",
                                "type": "function",
                                "function": {"name": "get_weather", "arguments": '{"ci'},
                            }
                        ]
                    }
                )
            )

        self.stub.answer = broken
        self.ask()
        self.page.wait("document.querySelector('.fault')")
        self.assertFalse(self.page.count(".results"))
        self.stub.answer = say("Better.")
        self.ask("Again")
        self.answered(2)
        self.assertEqual(
            self.stub.bodies[-1]["messages"], [{"role": "user", "content": "Hi"}, {"role": "user", "content": "Again"}]
        )

    def test_thinking_is_folded(self):
        self.stub.answer = lambda h, _: h.stream(
            chunk({"content": None, "reasoning_content": "I think."}),
            chunk({"content": "So."}),
            chunk({"content": ""}, "stop", USAGE),
            "[DONE]",
        )
        self.ask()
        self.answered()
        self.assertFalse(self.page.eval("document.querySelector('.thinking').open"))
        self.assertNotIn("I think.", self.page.text(".answer"))
        self.page.click(".thinking summary")
        self.page.wait("document.querySelector('.answer').innerText.includes('I think.')")

    def test_names_files_and_undo(self):
        self.ask("First question")
        self.answered()
        before = self.page.eval("document.querySelector('.thread').innerText")
        self.page.hover(".chats .open")
        self.page.click('.chats [aria-label^="Rename"]')
        self.page.fill(".rename", "My chat")
        self.page.press("Enter")
        self.page.wait("document.querySelector('.chat-title').textContent === 'My chat'")
        self.page.eval("""(() => {
            window.saved = null;
            const make = URL.createObjectURL;
            URL.createObjectURL = (blob) => { blob.text().then((t) => window.saved = t); return make.call(URL, blob); };
            HTMLAnchorElement.prototype.click = function () {};
        })()""")
        self.page.click('[aria-label="Export all conversations"]')
        saved = json.loads(self.page.wait("window.saved"))
        self.assertEqual([c["title"] for c in saved["conversations"]], ["My chat"])
        self.page.hover(".chats .open")
        self.page.click('.chats [aria-label^="Delete"]')
        self.page.wait("!document.querySelector('.thread')")
        self.page.click(".toast button")
        self.page.wait("document.querySelector('.thread')")
        self.page.hover(".chats .open")
        self.page.click('.chats [aria-label^="Delete"]')
        self.page.wait("!document.querySelector('.thread')")
        self.bring_in(saved)
        self.page.wait("document.querySelector('.thread')")
        settle(self.page)
        self.page.reload()
        self.page.wait("document.querySelector('.thread .answer')")
        self.assertEqual(self.page.eval("document.querySelector('.thread').innerText"), before)
        self.assertEqual(self.page.text(".chat-title"), "My chat")

    def test_bad_files_are_refused_with_a_reason(self):
        good = conversation([("user", "q")])
        cyclic = conversation([("user", "q"), ("assistant", "a")])
        cyclic["messages"]["abcm0"]["parent"] = "abcm1"
        cases = [
            ("{", "not JSON"),
            ("[]", "not exported by this page"),
            (json.dumps({**export(good), "version": 9}), "version 9"),
            (json.dumps(export({**good, "id": "__proto__"})), "conversations[0].id is not an id"),
            (json.dumps(export({**good, "messages": 7})), "conversations[0].messages is not an object"),
            (
                json.dumps(export({**good, "messages": {"a": {"id": "a", "role": "boss", "content": ""}}})),
                "role is none of",
            ),
            (
                json.dumps(
                    export({**good, "messages": {"a": {"id": "a", "role": "user", "content": "", "parent": "zz"}}})
                ),
                "follows one that is not there",
            ),
        ]
        for text, words in cases:
            with self.subTest(words):
                self.bring_in(text)
                self.page.wait(f"document.querySelector('.toast')?.innerText.includes({json.dumps(words)})")
        self.assertEqual(self.page.count(".chats .open"), 0)
        self.bring_in(export(cyclic))  # a ring of messages: nothing to show, and nothing hangs
        self.page.wait("document.querySelector('.chats .open')")


if __name__ == "__main__":
    unittest.main(verbosity=1)
