"""A headless Chromium, driven over its debugging protocol with the standard library alone.

    with Browser() as browser:
        page = browser.open("http://127.0.0.1:8000/")
        page.wait("document.querySelector('#composer')")
        page.type("#composer", "Hello")
        page.press("Enter")

Everything that the page asked for, printed or threw is in page.requests, page.console and page.errors."""

import base64
import json
import os
import pathlib
import shutil
import socket
import struct
import subprocess
import tempfile
import threading
import time

TIMEOUT_S = 120  # the machine may be busy
KEYS = {
    "Enter": ("Enter", 13, "\r"),
    "Escape": ("Escape", 27, ""),
    "Tab": ("Tab", 9, ""),
    "ArrowUp": ("ArrowUp", 38, ""),
    "ArrowDown": ("ArrowDown", 40, ""),
    "ArrowLeft": ("ArrowLeft", 37, ""),
    "ArrowRight": ("ArrowRight", 39, ""),
    " ": ("Space", 32, " "),
}
MODIFIERS = {"Alt": 1, "Ctrl": 2, "Meta": 4, "Shift": 8}


def find_chromium():
    return next(
        (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
    )


class WebSocket:
    """A client of RFC 6455: text messages, no extensions."""

    def __init__(self, host, port, path):
        self.socket = socket.create_connection((host, port), timeout=TIMEOUT_S)
        self.rest = b""
        key = base64.b64encode(os.urandom(16)).decode()
        self.socket.sendall(
            f"GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
        )
        while b"\r\n\r\n" not in self.rest:
            self.rest += self.socket.recv(4096)
        head, self.rest = self.rest.split(b"\r\n\r\n", 1)
        if b" 101 " not in head.split(b"\r\n")[0]:
            raise OSError(f"no WebSocket at {path}: {head[:100]!r}")

    def send(self, text):
        data, mask = text.encode(), os.urandom(4)
        size = (
            bytes([0x80 | len(data)])
            if len(data) < 126
            else b"\xfe" + struct.pack(">H", len(data))
            if len(data) < 65536
            else b"\xff" + struct.pack(">Q", len(data))
        )
        stream = (mask * (len(data) // 4 + 1))[: len(data)]
        masked = (
            (int.from_bytes(data, "big") ^ int.from_bytes(stream, "big")).to_bytes(len(data), "big") if data else b""
        )
        self.socket.sendall(b"\x81" + size + mask + masked)

    def take(self, count):
        while len(self.rest) < count:
            more = self.socket.recv(1 << 16)
            if not more:
                raise EOFError
            self.rest += more
        head, self.rest = self.rest[:count], self.rest[count:]
        return head

    def receive(self):
        """The next text message."""
        message = b""
        while True:
            first, second = self.take(2)
            size = second & 0x7F
            if size >= 126:
                size = struct.unpack(">H", self.take(2))[0] if size == 126 else struct.unpack(">Q", self.take(8))[0]
            data, kind = self.take(size), first & 0x0F
            if kind == 8:
                raise EOFError
            if kind in (0, 1):
                message += data
                if first & 0x80:
                    return message.decode()


class Page:
    def __init__(self, browser, session):
        self.browser, self.session = browser, session
        self.requests, self.console, self.errors = [], [], []

    def call(self, method, **params):
        return self.browser.call(method, params, self.session)

    def on_event(self, method, params):
        if method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.console.append(" ".join(str(a.get("value", a.get("description"))) for a in params["args"]))
        elif method == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.errors.append(details.get("exception", {}).get("description") or details["text"])
        elif method == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.console.append(params["entry"]["text"] + " " + params["entry"].get("url", ""))

    def eval(self, expression):
        """The value of a JavaScript expression; a promise is waited for."""
        result = self.call(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True, userGesture=True
        )
        if "exceptionDetails" in result:
            raise AssertionError(result["exceptionDetails"].get("exception", {}).get("description", expression))
        return result["result"].get("value")

    def wait(self, expression, what=None, timeout_s=TIMEOUT_S):
        """Waits until the expression is true and returns its value."""
        end = time.monotonic() + timeout_s
        while True:
            value = self.eval(f"(() => {{ const v = ({expression}); return v instanceof Element ? true : v; }})()")
            if value:
                return value
            if time.monotonic() > end:
                raise AssertionError(
                    f"waited in vain for {what or expression}; the page shows:\n{self.text('body')[:3000]}"
                )
            time.sleep(0.03)

    def text(self, selector):
        return self.eval(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''")

    def count(self, selector):
        return self.eval(f"document.querySelectorAll({json.dumps(selector)}).length")

    def place_of(self, selector, at=0):
        """The middle of the element (of its first line), once it stands still and nothing lies above it."""
        place = self.eval(f"""(async () => {{
            const end = performance.now() + {TIMEOUT_S * 1000};
            for (let last = "", before = ""; performance.now() < end; before = last) {{
                const e = document.querySelectorAll({json.dumps(selector)})[{at}];
                if (!e) return null;
                e.scrollIntoView({{block: "center"}});
                const r = e.getClientRects()[0] ?? e.getBoundingClientRect();
                const [x, y] = [r.left + r.width / 2, r.top + r.height / 2];
                const hit = document.elementFromPoint(x, y);
                last = `${{x}} ${{y}}`;
                const reached = hit && (e.contains(hit) || e.closest("label")?.contains(hit));
                if (last === before && reached) return [x, y];
                await new Promise((next) => setTimeout(next, 20));
            }}
            return null;
        }})()""")
        if place is None:
            raise AssertionError(f"nothing to reach at {selector}")
        return place

    def click(self, selector, at=0):
        """A real click."""
        place = self.place_of(selector, at)
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            button = "none" if kind == "mouseMoved" else "left"
            self.call("Input.dispatchMouseEvent", type=kind, x=place[0], y=place[1], button=button, clickCount=1)

    def hover(self, selector):
        place = self.place_of(selector)
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=place[0], y=place[1])

    def type(self, selector, text):
        self.eval(f"document.querySelector({json.dumps(selector)}).focus()")
        self.call("Input.insertText", text=text)

    def fill(self, selector, text):
        """Replaces what a field holds."""
        self.eval(f"(() => {{ const e = document.querySelector({json.dumps(selector)}); e.focus(); e.select(); }})()")
        self.call("Input.insertText", text=text)
        self.eval(
            f"document.querySelector({json.dumps(selector)}).dispatchEvent(new Event('change', {{bubbles: true}}))"
        )

    def press(self, key, *modifiers):
        code, number, text = KEYS.get(key) or (f"Key{key.upper()}", ord(key.upper()), "")
        mask = sum(MODIFIERS[m] for m in modifiers)
        common = dict(key=key, code=code, windowsVirtualKeyCode=number, modifiers=mask)
        self.call("Input.dispatchKeyEvent", type="keyDown", **common, **({"text": text} if text and not mask else {}))
        self.call("Input.dispatchKeyEvent", type="keyUp", **common)

    def navigate(self, url):
        self.call("Page.navigate", url=url)
        self.loaded("location.href !== 'about:blank'")

    def reload(self):
        self.eval("window.beforeReload = true")
        self.call("Page.reload")
        self.loaded("window.beforeReload !== true")

    def loaded(self, condition):
        end = time.monotonic() + TIMEOUT_S
        while time.monotonic() < end:
            try:
                if self.eval(f"{condition} && document.readyState === 'complete'"):
                    return
            except AssertionError:
                pass  # between two documents
            time.sleep(0.03)
        raise AssertionError("the page did not load")

    def close(self):
        """Closes the tab, so that it takes no time from those after it."""
        self.call("Page.close")

    def size(self, width, height, mobile=False, scale=1):
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=mobile
        )

    def scheme(self, name):
        """light or dark; without animations, which only cost time."""
        self.call(
            "Emulation.setEmulatedMedia",
            features=[
                {"name": "prefers-color-scheme", "value": name},
                {"name": "prefers-reduced-motion", "value": "reduce"},
            ],
        )

    def screenshot(self, path):
        data = self.call("Page.captureScreenshot", format="png")["data"]
        pathlib.Path(path).write_bytes(base64.b64decode(data))

    def accessibility(self):
        return self.call("Accessibility.getFullAXTree")["nodes"]


class Browser:
    def __init__(self):
        self.home = tempfile.TemporaryDirectory(prefix="deepinfer-browser-", ignore_cleanup_errors=True)
        args = [
            find_chromium(),
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--no-first-run",
            "--no-default-browser-check",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--disable-extensions",
            "--disable-default-apps",
            "--mute-audio",
            "--hide-scrollbars",
            "--lang=en-US",
            f"--user-data-dir={self.home.name}",
            "--remote-debugging-port=0",
            "about:blank",
        ]
        self.process = subprocess.Popen(args, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.lock, self.answers, self.pages, self.number = threading.Condition(), {}, {}, 0
        port_file = pathlib.Path(self.home.name) / "DevToolsActivePort"
        end = time.monotonic() + TIMEOUT_S
        while not port_file.exists() or len(port_file.read_text().splitlines()) < 2:
            if time.monotonic() > end or self.process.poll() is not None:
                self.close()
                raise OSError("Chromium did not start")
            time.sleep(0.02)
        port, path = port_file.read_text().splitlines()[:2]
        self.socket = WebSocket("127.0.0.1", int(port), path)
        self.socket.socket.settimeout(None)
        threading.Thread(target=self.listen, daemon=True).start()

    def listen(self):
        try:
            while True:
                message = json.loads(self.socket.receive())
                with self.lock:
                    if "id" in message:
                        self.answers[message["id"]] = message
                        self.lock.notify_all()
                    elif message.get("sessionId") in self.pages:
                        self.pages[message["sessionId"]].on_event(message["method"], message["params"])
        except (EOFError, OSError, ValueError):
            with self.lock:
                self.answers = None
                self.lock.notify_all()

    def call(self, method, params, session=None):
        with self.lock:
            self.number += 1
            number = self.number
            self.socket.send(
                json.dumps(
                    {"id": number, "method": method, "params": params, **({"sessionId": session} if session else {})}
                )
            )
            if (
                not self.lock.wait_for(lambda: self.answers is None or number in self.answers, timeout=240)
                or self.answers is None
            ):
                raise OSError(f"no answer of Chromium to {method}")
            message = self.answers.pop(number)
        if "error" in message:
            raise AssertionError(f"{method}: {message['error']['message']}")
        return message["result"]

    def open(self, url, width=1280, height=860, script=None):
        """A tab with a storage of its own; `script` runs in it before those of the page."""
        context = self.call("Target.createBrowserContext", {})["browserContextId"]
        target = self.call("Target.createTarget", {"url": "about:blank", "browserContextId": context})["targetId"]
        session = self.call("Target.attachToTarget", {"targetId": target, "flatten": True})["sessionId"]
        page = Page(self, session)
        self.pages[session] = page
        for domain in ("Page", "Runtime", "Network", "Log"):
            page.call(f"{domain}.enable")
        if script:
            page.call("Page.addScriptToEvaluateOnNewDocument", source=script)
        page.size(width, height)
        page.scheme("light")
        page.navigate(url)
        return page

    def close(self):
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.home.cleanup()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
