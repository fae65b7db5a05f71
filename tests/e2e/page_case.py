"""What tests of the page share: a page of its own for each test, which must end without errors and without requests to
others; and, before a stand-in server, a browser and that server for all. Needs Chromium."""

import json
import sys
import unittest

from browser import Browser, find_chromium
from page_stub import Stub, say
from program import SANITIZED


class PageCase(unittest.TestCase):
    maxDiff = None

    def open_page(self, browser, url):
        self.url, self.expect_console = url, []
        self.page = browser.open(url)
        self.addCleanup(self.page.close)
        self.page.wait("document.querySelector('.starters') && document.querySelector('.model-name')")

    def tearDown(self):
        page = self.page
        self.assertEqual(page.errors, [])
        self.assertEqual([line for line in page.console if not any(e in line for e in self.expect_console)], [])
        self.assertEqual([url for url in page.requests if not url.startswith((self.url, "blob:" + self.url))], [])

    def ask(self, text="Hi"):
        self.page.type("#composer", text)
        self.page.press("Enter")

    def answered(self, count=1):
        self.page.wait(
            f"document.querySelectorAll('.answer .actions').length >= {count}"
            " && !document.querySelector('.answer.growing')",
            "an answer",
        )


class StubPageTest(PageCase):
    @classmethod
    def setUpClass(cls):
        if not find_chromium() or SANITIZED:  # nothing of the program is in these tests
            print(
                "SKIPPED, NOTHING WAS CHECKED: Chromium is not installed (tools/install-deps.sh --tests), or a build"
                " with sanitizers",
                file=sys.stderr,
            )
            raise unittest.SkipTest("no Chromium")
        cls.browser, cls.stub = Browser(), Stub()
        cls.addClassCleanup(cls.stub.close)
        cls.addClassCleanup(cls.browser.close)

    def setUp(self):
        self.stub.key, self.stub.answer, self.stub.bodies = None, say("Hello there."), []
        self.open_page(self.browser, self.stub.url)

    def bring_in(self, file):
        self.page.eval(f"""(() => {{
            const transfer = new DataTransfer();
            transfer.items.add(new File([{json.dumps(file if isinstance(file, str) else json.dumps(file))}], "x.json"));
            const input = document.querySelector("input[type=file]");
            input.files = transfer.files;
            input.dispatchEvent(new Event("change", {{bubbles: true}}));
        }})()""")
