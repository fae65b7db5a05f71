"""The page can be used by keyboard alone, by screen readers, on small screens and in the user's own theme, before a
stand-in server. Needs Chromium."""

import os
import unittest

from page_case import StubPageTest
from page_stub import USAGE, chunk, say, settle

ALL = bool(os.environ.get("DEEPINFER_TEST_ALL"))
NAMED_ROLES = {
    "button",
    "textbox",
    "searchbox",
    "slider",
    "spinbutton",
    "combobox",
    "switch",
    "checkbox",
    "radio",
    "tab",
    "dialog",
    "link",
    "navigation",
    "complementary",
    "img",
}


class PageAccessTest(StubPageTest):
    def test_keyboard_alone(self):
        page = self.page
        self.ask("One")
        self.answered()
        page.press("ArrowUp")
        page.wait("document.activeElement.closest('.edit-box')")
        page.press("Escape")
        page.wait("!document.querySelector('.edit-box')")
        for key, modifiers, there in (
            (".", ("Ctrl",), "!document.querySelector('.panel')"),
            (".", ("Ctrl",), "document.querySelector('.panel')"),
            ("s", ("Ctrl", "Shift"), "!document.querySelector('.sidebar')"),
            ("s", ("Ctrl", "Shift"), "document.querySelector('.sidebar')"),
            ("e", ("Ctrl", "Shift"), "document.querySelector('dialog[open]')"),
            ("Escape", (), "!document.querySelector('dialog[open]')"),
            ("/", ("Ctrl",), "document.querySelector('dialog[open] kbd')"),
            ("Escape", (), "!document.querySelector('dialog[open]')"),
            ("o", ("Ctrl", "Shift"), "document.querySelector('.starters')"),
            ("ArrowDown", ("Ctrl",), "document.querySelector('.thread')"),
        ):
            page.press(key, *modifiers)
            page.wait(there, f"{modifiers} {key}")
        seen = set()
        page.eval("document.activeElement.blur()")
        for _ in range(80):
            page.press("Tab")
            seen.add(
                page.eval("document.activeElement.getAttribute('aria-label') ?? document.activeElement.innerText ?? ''")
            )
        for name in (
            "Skip to the message field",
            "New chat",
            "Message",
            "Answer again",
            "Edit",
            "Show tokens",
            "System prompt",
        ):
            self.assertIn(name, seen)

    def check_names(self, where):
        bare = [
            n["role"]["value"]
            for n in self.page.accessibility()
            if not n["ignored"] and n["role"]["value"] in NAMED_ROLES and not n.get("name", {}).get("value")
        ]
        self.assertEqual(bare, [], where)

    def check_contrast(self, where):
        """WCAG AA: 4.5 for text, 3 for large text, over the nearest painted background."""
        low = self.page.eval("""(async () => {
            const moves = () => document.getAnimations().some((a) => a.playState === 'running');
            for (let still = 0; still < 3; still = moves() ? 0 : still + 1) await new Promise(requestAnimationFrame);
            const canvas = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
            const rgba = (c) => {
                canvas.clearRect(0, 0, 1, 1);
                canvas.fillStyle = c;
                canvas.fillRect(0, 0, 1, 1);
                return [...canvas.getImageData(0, 0, 1, 1).data];
            };
            const mix = (v, under, alpha) => v * alpha + under * (1 - alpha);
            const over = (top, under) => top.slice(0, 3).map((v, i) => mix(v, under[i], top[3] / 255));
            const linear = (v) => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
            const lum = (c) => c.reduce((sum, v, i) => sum + linear(v) * [0.2126, 0.7152, 0.0722][i], 0);
            const ground = (e) => {
                const chain = [];
                for (; e; e = e.parentElement) chain.push(rgba(getComputedStyle(e).backgroundColor));
                return chain.reverse().reduce((under, c) => over(c, under), [255, 255, 255]);
            };
            const bad = [];
            for (const e of document.querySelectorAll('body *')) {
                if (![...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim())) continue;
                if (!e.checkVisibility({opacityProperty: true, visibilityProperty: true})) continue;
                if (e.closest('.offscreen, :disabled, .skip')) continue;
                const style = getComputedStyle(e), under = ground(e), text = over(rgba(style.color), under);
                const [a, b] = [lum(text), lum(under)].sort((x, y) => y - x), ratio = (a + 0.05) / (b + 0.05);
                const size = parseFloat(style.fontSize);
                const large = size >= 24 || (size >= 18.66 && parseInt(style.fontWeight) >= 600);
                if (ratio >= (large ? 3 : 4.5)) continue;
                bad.push([e.className || e.tagName, e.innerText.slice(0, 30), Math.round(ratio * 100) / 100]);
            }
            return bad;
        })()""")
        self.assertEqual(low, [], where)

    def test_names_roles_and_contrast(self):
        page = self.page
        for scheme in ("light", "dark"):
            page.scheme(scheme)
            page.click(".new-chat")
            self.check_names("welcome")
            self.check_contrast(f"welcome, {scheme}")
            self.stub.answer = lambda h, _: h.stream(
                chunk({"reasoning_content": "Thinking"}),
                chunk({
                    "content": '# Title\n\nText with `code`, [link](https://example.com)\n\n```py\nx = f(1)  # y\ns = '
                               '"t"\n```\n\n> quote'
                }),
                chunk({
                    "tool_calls": [{
                        "index": 0,
                        "id": "c1",
                        "type": "function",
                        "function": {"name": "get_weather", "arguments": '{"city": 1}'}, }]}),
                chunk({"content": ""}, "tool_calls", USAGE),
                "[DONE]",
            )
            self.ask()
            page.wait("document.querySelector('.results')")
            page.eval("document.querySelectorAll('details').forEach((d) => d.open = true)")
            for tab in ("tools", "format", "live", "parameters"):
                page.click(f"#tab-{tab}")
                page.wait(f"document.querySelector('#pane-{tab}')")
                if tab == "tools":
                    page.click('[aria-label="Add a tool"] button')
                if tab == "format":
                    page.click("input[name=format]", at=2)
                page.eval("document.querySelectorAll('details').forEach((d) => d.open = true)")
                self.check_names(tab)
                self.check_contrast(f"{tab}, {scheme}")
            for label in ("This request as code", "Settings", "Keyboard"):
                page.click(f'[aria-label="{label}"]')
                page.wait("document.querySelector('dialog[open]')")
                self.check_names(label)
                self.check_contrast(f"{label}, {scheme}")
                page.press("Escape")
                page.wait("!document.querySelector('dialog[open]')")
        roles = [n["role"]["value"] for n in page.accessibility() if not n["ignored"]]
        self.assertEqual(roles.count("main"), 1)
        self.assertEqual(page.eval("document.documentElement.lang"), "en")
        ids = page.eval("[...document.querySelectorAll('[id]')].map((e) => e.id)")
        self.assertEqual(len(ids), len(set(ids)))

    def test_small_screens(self):
        for width in (320, 390, 768) if ALL else (320,):
            self.page.size(width, 740, mobile=True)
            settle(self.page)
            self.page.reload()
            self.page.wait("document.querySelector('.starters, .thread')")
            self.stub.answer = say(
                "A very_long_word_"
                + "x" * 300
                + "\n\n```\n"
                + "y" * 300
                + "\n```\n\n| a | b |\n|---|---|\n| "
                + "z" * 200
                + " | b |"
            )
            self.ask("w" * 200)
            self.answered()
            self.assertLessEqual(self.page.eval("document.documentElement.scrollWidth"), width)
            self.assertLessEqual(
                self.page.eval(
                    "document.querySelector('.thread').scrollWidth - document.querySelector('.thread').clientWidth"
                ),
                0,
            )
            self.page.click('[aria-label="Show the list of chats"]')
            self.page.wait("document.querySelector('.sidebar')")
            self.page.click('[aria-label="Hide the list"]')
            self.page.wait("!document.querySelector('.sidebar')")
            self.page.click('[aria-label="Panel"]')
            self.page.wait("document.querySelector('.panel')")
            self.page.click('[aria-label="Close the panel"]')
            self.page.wait("!document.querySelector('.panel')")

    def test_theme_is_kept(self):
        self.page.scheme("light")
        light = self.page.eval("getComputedStyle(document.body).backgroundColor")
        self.page.click('[aria-label="Settings"]')
        self.page.wait("document.querySelector('dialog[open] input[name=theme]')")
        self.page.click("input[name=theme]", at=2)
        self.page.wait("document.documentElement.dataset.theme === 'dark'")
        self.page.press("Escape")
        dark = self.page.eval("getComputedStyle(document.body).backgroundColor")
        self.assertNotEqual(light, dark)
        settle(self.page)
        self.page.reload()
        self.page.wait("document.querySelector('.starters')")


if __name__ == "__main__":
    unittest.main(verbosity=1)
