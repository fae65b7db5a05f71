"""Makes the README's picture of the page: python3 tests/e2e/page_screenshot.py PROGRAM docs/images/page.png. Needs
Chromium."""

import sys
import time

from browser import Browser
from server import Server

WIDTH, HEIGHT, SCALE = 1360, 880, 1.5

with Server() as server, Browser() as browser:
    page = browser.open(server.url, WIDTH, HEIGHT)
    page.size(WIDTH, HEIGHT, scale=SCALE)
    page.scheme("light")
    page.wait("document.querySelector('.starters') && document.querySelector('.model-name em')")
    count = page.count(".starters button")
    for at in [i for i in range(count) if i != 2] + [2]:  # the tool call comes last and is shown
        page.click(".new-chat")
        page.wait("document.querySelector('.starters')")
        page.click(".starters button", at=at)
        page.wait("document.querySelector('.answer .actions') && !document.querySelector('.growing')")
    page.click("#tab-live")
    page.eval(
        "[...document.querySelectorAll('.results button')].find((b) => b.textContent.includes('example')).click()"
    )
    page.click(".results .primary")
    page.wait("document.querySelectorAll('.answer .actions').length === 2 && !document.querySelector('.growing')")
    time.sleep(4)  # a few samples of the live numbers
    page.screenshot(sys.argv[1])
