"""The page in Chromium before the real service and the bundled model: type, stream, stop, edit, branch, answer again,
reload, tools, schemas, tokens and counters. What the page shows is compared with what the API says.
DEEPINFER_TEST_ALL=1 adds the longer ones."""

import json
import os
import pathlib
import re
import subprocess
import sys
import time
import unittest

import sdk_install
from browser import TIMEOUT_S, Browser, find_chromium
from page_case import PageCase
from page_stub import settle
from program import SANITIZED
from server import Server

LONG = unittest.skipUnless(os.environ.get("DEEPINFER_TEST_ALL"), "runs with ./test.sh --all")
SHOTS = os.environ.get("DEEPINFER_SCREENSHOTS")  # a folder for screenshots


def setUpModule():
    global browser, server
    if not find_chromium() or SANITIZED:
        print(
            "SKIPPED, NOTHING WAS CHECKED: Chromium is not installed (tools/install-deps.sh --tests), or a build with "
            "sanitizers",
            file=sys.stderr,
        )
        raise unittest.SkipTest("no Chromium")
    browser, server = Browser(), Server("--kv-host-mb", "64", "--draft-confidence", "off")


def tearDownModule():
    browser.close()
    server.stop()


class PageTest(PageCase):
    def setUp(self):
        self.open_page(browser, server.url)
        self.model = self.page.eval("document.querySelector('.model-name').firstChild.textContent")

    def tearDown(self):
        super().tearDown()
        if SHOTS:
            pathlib.Path(SHOTS).mkdir(parents=True, exist_ok=True)
            self.page.screenshot(f"{SHOTS}/{self.id().rsplit('.', 1)[1]}.png")

    def settings(self, **values):
        labels = {"temperature": "Temperature, exact value", "top_p": "Top P, exact value"}
        for name, value in values.items():
            self.page.fill(f'[aria-label="{labels[name]}"]', str(value))

    def number(self, name, value):
        self.page.eval(
            f"[...document.querySelectorAll('.pair label')].find((l) => l.textContent === "
            f"'{name}').querySelector('input').id = 'the-number'"
        )
        self.page.fill("#the-number", str(value))
        self.page.eval("document.querySelector('#the-number').removeAttribute('id')")

    def thinking(self, on):
        self.page.click("input[name=thinking]", at=1 if on else 2)

    def answers(self):
        return self.page.eval(
            "[...document.querySelectorAll('.answer .markdown, .answer .tokens-text')].map((m) => m.textContent)"
        )

    def start_calmly(self):
        self.settings(temperature=0)
        self.thinking(False)

    def test_streams_what_the_api_says_and_keeps_it(self):
        self.start_calmly()
        self.number("Max tokens", 250)
        self.page.eval("""(() => { window.lengths = [];
            new MutationObserver(() => {
                const a = document.querySelector('.answer');
                if (a) lengths.push(a.innerText.length);
            }).observe(document.body, {subtree: true, childList: true, characterData: true}); })()""")
        self.ask("Write a story for children about a little train.")
        self.answered()
        status, body = server.post(
            "/v1/chat/completions",
            {
                "model": self.model,
                "temperature": 0,
                "max_tokens": 250,
                "thinking": {"type": "disabled"},
                "messages": [{"role": "user", "content": "Write a story for children about a little train."}],
            },
        )
        self.assertEqual(status, 200, body)
        said = body["choices"][0]["message"]["content"]
        squeezed = lambda text: re.sub(r"\s+", "", text)
        self.assertEqual(squeezed(self.answers()[0]), squeezed(said))
        self.assertGreater(self.page.eval("new Set(lengths).size"), 2)  # it grew
        self.assertEqual(self.page.text("[data-figure=completion]"), f"{body['usage']['completion_tokens']} tokens")
        self.assertEqual(body["choices"][0]["finish_reason"], "length")
        self.assertIn("Cut at the token limit", self.page.text(".answer .actions"))
        shown = self.page.eval("document.querySelector('.thread').innerText")
        title = self.page.text(".chat-title")
        settle(self.page)
        self.page.reload()
        self.page.wait("document.querySelector('.answer .actions')")
        self.assertEqual(self.page.eval("document.querySelector('.thread').innerText"), shown)
        self.assertEqual(self.page.text(".chat-title"), title)

    def test_stop(self):
        for _ in range(5):  # an answer may come to its end before the key
            self.page.click(".new-chat")
            self.page.wait("document.querySelector('.starters')")
            self.settings(temperature=2)
            self.thinking(False)
            self.number("Max tokens", 6000)
            self.ask("Tell me a story about a robot. Give it a title.")
            self.page.wait("document.querySelector('.answer .markdown')")
            self.page.press("Escape")
            self.answered()
            if "Stopped" in self.page.text(".answer .actions"):
                break
        self.assertIn("Stopped", self.page.text(".answer .actions"))
        self.assertTrue(self.answers()[0])
        end = time.monotonic() + TIMEOUT_S
        while server.metric("deepinfer_requests_running") > 0 and time.monotonic() < end:
            time.sleep(0.05)
        self.assertEqual(server.metric("deepinfer_requests_running"), 0)
        self.page.wait("document.querySelector('.send:not(.stop)')")

    def test_edit_again_and_branches(self):
        self.start_calmly()
        self.ask("How do I make tea?")
        self.answered()
        first = self.answers()
        self.page.click('.answer [aria-label="Answer again"]')
        self.page.wait(
            "document.querySelector('.answer .branches')?.textContent.includes('2/2') && "
            "!document.querySelector('.growing')"
        )
        self.assertEqual(self.answers(), first)  # greedy: the same answer on another branch
        self.page.hover(".user .bubble")
        self.page.click('.user [aria-label="Edit"]')
        self.page.wait("document.querySelector('.edit-box')")
        self.page.fill(".edit-box textarea", "Why is the sky blue?")
        self.page.press("Enter")
        self.page.wait("document.querySelector('.user .branches')?.textContent.includes('2/2')")
        self.answered()
        second = self.answers()
        self.assertNotEqual(second, first)
        self.page.click('.user [aria-label="Previous branch"]')
        self.page.wait("document.querySelector('.user .bubble').innerText === 'How do I make tea?'")
        self.assertEqual(self.answers(), first)
        settle(self.page)
        self.page.reload()
        self.page.wait("document.querySelector('.answer .actions')")
        self.assertEqual(self.answers(), first)
        self.page.click('.user [aria-label="Next branch"]')
        self.page.wait("document.querySelector('.user .bubble').innerText === 'Why is the sky blue?'")
        self.assertEqual(self.answers(), second)

    def test_tokens_have_the_ids_and_probabilities_of_the_api(self):
        self.start_calmly()
        self.page.click('[aria-label="Show tokens"]')
        self.ask("How do I make tea?")
        self.answered()
        # Ids come from the server, for each message on its own.
        self.page.wait("document.querySelectorAll('.answer .token[data-id]').length > 3")
        self.page.wait("document.querySelectorAll('.user .token[data-id]').length > 0")
        status, body = server.post(
            "/v1/chat/completions",
            {
                "model": self.model,
                "temperature": 0,
                "thinking": {"type": "disabled"},
                "logprobs": True,
                "top_logprobs": 5,
                "messages": [{"role": "user", "content": "How do I make tea?"}],
            },
        )
        self.assertEqual(status, 200)
        entries = body["choices"][0]["logprobs"]["content"]
        shown = self.page.eval(
            "[...document.querySelectorAll('.answer .token')].map((t) => [t.textContent, t.dataset.id ? "
            "Number(t.dataset.id) : null])"
        )
        self.assertEqual([text for text, _ in shown], [e["token"] for e in entries])
        status, told = server.post(
            "/v1/tokenize", {"model": self.model, "prompt": "How do I make tea?", "add_special_tokens": False}
        )
        self.assertEqual(status, 200)
        self.assertEqual(
            self.page.eval("[...document.querySelectorAll('.user .token')].map((t) => Number(t.dataset.id))"),
            told["tokens"],
        )
        status, told = server.post(
            "/v1/tokenize",
            {"model": self.model, "prompt": body["choices"][0]["message"]["content"], "add_special_tokens": False},
        )
        for (text, number), entry in zip(shown, entries):  # where the model cut the text as the tokenizer does
            if number is not None:
                self.assertIn(number, told["tokens"], text)
        self.assertGreater(sum(number is not None for _, number in shown), len(shown) / 2)
        self.page.hover(".answer .token")
        self.page.wait("document.querySelector('.token-popup')")
        popup = self.page.text(".token-popup")
        for alternative in entries[0]["top_logprobs"]:
            self.assertIn(alternative["token"].replace(" ", "·"), popup)
        self.page.eval("document.querySelector('.answer .token').focus()")
        self.page.press("ArrowRight")
        self.assertEqual(self.page.eval("document.activeElement.dataset.token"), "1")

    def test_counters_are_those_of_metrics(self):
        self.start_calmly()
        self.page.click("#tab-live")
        self.ask("How do I make tea?")
        self.answered()
        # The server counts an answer when all of it is sent, which the page may see first; then both are at rest.
        names = {"generated": "engine_output_tokens_total", "prompt": "prompt_tokens_total"}
        end = time.monotonic() + TIMEOUT_S
        while True:
            told = {name: f"{int(server.metric('deepinfer_' + metric)):,}" for name, metric in names.items()}
            shown = {name: self.page.text(f"[data-metric={name}]").split(" ")[0] for name in names}
            if told == shown or time.monotonic() > end:
                break
            time.sleep(0.1)
        self.assertEqual(shown, told)
        self.assertGreater(int(told["prompt"].replace(",", "")), 0)
        self.page.wait("document.querySelector('[data-metric=running]').textContent === '0'")
        self.assertRegex(self.page.text("[data-metric=kv]"), r"^[\d.]+%$")
        self.assertRegex(self.page.text("[data-metric=hits]"), r"^[\d.]+%$")

    def test_tiers_are_those_of_metrics(self):
        self.start_calmly()
        self.page.click("#tab-live")
        long = [{"role": "user", "content": "Tell me about the number 7. " * 60}]
        self.assertEqual(
            server.post("/v1/chat/completions", {"model": "deepseek-v4.1-flash", "messages": long, "max_tokens": 2})[0],
            200)

        def told():
            samples = re.findall(
                r'^deepinfer_kv_tier_(reads|hits)_total{tenant="(.*)",tier="(.*)",traffic="(.*)"} (\S+)',
                server.get("/metrics")[1], re.M)
            rows = {}
            for name, tenant, tier, traffic, value in samples:
                rows.setdefault((tier, traffic, tenant), {})[name] = f"{int(float(value)):,}"
            return {(tier, traffic): f"{r['hits']} / {r['reads']}"
                    for (tier, traffic, _), r in rows.items()
                    if r["reads"] != "0"}

        def shown():
            cells = self.page.eval(
                "[...document.querySelectorAll('[data-tier]')].map((r) => [...r.children].map((c) => c.textContent))")
            return {(c[0], c[-4]): c[-3] for c in cells if not c[-3].endswith("/ 0")}

        end = time.monotonic() + TIMEOUT_S
        while (told() != shown() or not told()) and time.monotonic() < end:
            time.sleep(0.2)
        self.assertEqual(shown(), told())
        self.assertIn(("host", "chat"), told())

    def test_guesses_are_those_of_metrics(self):
        self.start_calmly()
        self.page.click("#tab-live")
        body = {
            "model": "deepseek-v4.1-flash", "messages": [{"role": "user", "content": "Tell me a story."}],
            "max_tokens": 40, "temperature": 0}
        self.assertEqual(server.post("/v1/chat/completions", body)[0], 200)

        def told():
            text = server.get("/metrics")[1]

            def value(name):
                found = re.search(rf"^deepinfer_{re.escape(name)} (\S+)$", text, re.M)
                return f"{int(float(found[1])):,}"

            places = re.findall(r'^deepinfer_draft_rows_total{place="(\d)"} (\S+)$', text, re.M)
            rows = [[p, f"{int(float(n)):,}", value(f'draft_accepted_total{{place="{p}"}}')] for p, n in sorted(places)]
            return rows, value("draft_tokens_total"), value("draft_rows_saved_total")

        def shown():
            rows = self.page.eval(
                "[...document.querySelectorAll('[data-draft]')].map((r) => [...r.children].map((c) => c.textContent))")
            return rows, *(self.page.eval(f"document.querySelector('[data-metric={name}]')?.textContent")
                           for name in ("guessed", "saved"))

        end = time.monotonic() + TIMEOUT_S
        while told() != shown() and time.monotonic() < end:
            time.sleep(0.2)
        self.assertEqual(shown(), told())
        self.assertGreaterEqual(len(shown()[0]), 1)

    def test_schema(self):
        self.expect_console = ["400"]
        self.start_calmly()
        self.page.click("#tab-format")
        self.page.click("input[name=format]", at=2)
        self.page.wait("document.querySelector('[aria-label=\"JSON schema\"]')")
        self.page.fill(
            '[aria-label="JSON schema"]',
            '{"type": "object", "properties": {"a": {"type": "strange"}}, "required": ["a"], "additionalProperties": '
            'false}',
        )
        self.page.eval(
            "[...document.querySelectorAll('.pane button')].find((b) => b.textContent === 'Check with the "
            "server').click()"
        )
        self.page.wait("document.querySelector('.verdict.bad')?.textContent.length > 10")
        self.assertIn("strange", self.page.text(".verdict"))
        self.page.fill('[aria-label="JSON schema"]', '{"type": ')
        self.page.wait("document.querySelector('.verdict.bad')?.textContent.startsWith('JSON, line 1')")
        self.page.eval("[...document.querySelectorAll('.pane button')].find((b) => b.textContent === 'person').click()")
        self.page.eval(
            "[...document.querySelectorAll('.pane button')].find((b) => b.textContent === 'Check with the "
            "server').click()"
        )
        self.page.wait("document.querySelector('.verdict.good')")
        self.ask(
            "Put this into JSON with the keys name, age, city: My name is Rosa. I live in Lisbon. I am 34 years old."
        )
        self.answered()
        self.page.wait("document.querySelector('.answer .check')")
        self.assertEqual(self.page.text(".answer .check"), "Valid JSON")
        self.assertEqual(
            set(json.loads(self.page.eval("document.querySelector('.answer pre').textContent"))),
            {"name", "age", "city"},
        )

    def test_tool_loop(self):
        self.page.eval(
            "[...document.querySelectorAll('.starters button')].find((b) => b.textContent.includes('Paris')).click()"
        )
        self.page.wait("document.querySelector('.results')")
        self.assertIn("get_weather", self.page.text(".call h3"))
        self.assertEqual(json.loads(self.page.eval("document.querySelector('.call pre').textContent"))["city"], "Paris")
        self.assertTrue(self.page.eval("document.querySelector('.send').disabled"))  # first the result
        self.page.eval(
            "[...document.querySelectorAll('.results button')].find((b) => b.textContent.includes('example')).click()"
        )
        self.page.click(".results .primary")
        self.answered(2)
        self.assertIn("18", self.answers()[-1])
        settle(self.page)
        self.page.reload()
        self.page.wait("document.querySelectorAll('.answer .actions').length === 2")
        self.assertFalse(self.page.count(".results"))
        self.assertFalse(self.page.count(".fault"))

    def test_errors_of_the_server(self):
        self.expect_console = ["400"]
        self.settings(temperature=7)
        self.ask("Hi")
        self.page.wait("document.querySelector('.fault')")
        status, body = server.post(
            "/v1/chat/completions",
            {"model": self.model, "temperature": 7, "messages": [{"role": "user", "content": "Hi"}]},
        )
        self.assertEqual(status, 400)
        self.assertEqual(self.page.text(".fault p").rstrip("."), body["error"]["message"].rstrip("."))
        self.assertIn("Show where", self.page.text(".fault"))

    def test_policy_of_the_page(self):
        import urllib.request

        with urllib.request.urlopen(server.url + "/") as response:
            policy = response.headers["content-security-policy"]
        rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
        self.assertEqual(rules.pop("default-src"), "'none'")
        self.assertLessEqual(set(rules.values()), {"'self'", "'none'"})

    @LONG
    def test_every_starter_works(self):
        count = self.page.count(".starters button")
        self.assertGreater(count, 3)
        for at in range(count):
            self.page.click(".new-chat")
            self.page.wait("document.querySelector('.starters')")
            self.page.click(".starters button", at=at)
            self.page.wait(
                "document.querySelector('.answer .actions') && !document.querySelector('.growing')", timeout_s=60
            )
            self.assertFalse(self.page.count(".fault"))
            self.assertGreater(len(self.page.text(".answer")), 20)

    @LONG
    def test_snippets_run(self):
        """Each snippet of the page answers, also with quotes in the text, tools and a system prompt."""
        self.start_calmly()
        self.page.fill("textarea[aria-label='System prompt']", 'Don\'t say "no".')
        self.page.click("#tab-tools")
        self.page.click('[aria-label="Add a tool"] button')
        self.page.type("#composer", "Say it's \"$HOME\" `x` \\ 'y' é 😀")
        self.page.click('[aria-label="This request as code"]')
        made = subprocess.run(
            ["tools/test_venv.sh", "build/test-data/sdk-venv", *sdk_install.PYTHON_PACKAGES],
            capture_output=True,
            text=True,
        )
        commands = {"curl": ["bash", "-c"]}
        if made.returncode == 0:
            commands |= {"python": [made.stdout.strip(), "-c"], "anthropic": [made.stdout.strip(), "-c"]}
        if not sdk_install.install_node():
            commands["node"] = ["node", "--input-type=module", "-e"]
        self.assertGreater(len(commands), 0)
        for name, command in commands.items():
            with self.subTest(name):
                self.page.click(f"#tab-{name}")
                self.page.wait(f"document.querySelector('#pane-{name} pre')")
                code = self.page.eval("document.querySelector('.snippet pre').textContent")
                done = subprocess.run(
                    [*command, code],
                    capture_output=True,
                    text=True,
                    timeout=240,
                    cwd=sdk_install.NODE_FOLDER if name == "node" else None,
                )
                self.assertEqual(done.returncode, 0, code + done.stderr)
                self.assertNotIn("rror", done.stderr)
                if name == "curl":
                    self.assertEqual(json.loads(done.stdout)["object"], "chat.completion")

    @LONG
    def test_a_long_chat_stays_quick(self):
        self.start_calmly()
        for turn in range(12):
            self.ask(["How do I make tea?", "Why is the sky blue?", "What can you do?"][turn % 3])
            self.answered(turn + 1)
        self.assertFalse(self.page.count(".fault"))
        self.assertGreater(self.page.eval("Number(document.querySelectorAll('[data-figure=cached]').length)"), 0)


if __name__ == "__main__":
    unittest.main(verbosity=1)
