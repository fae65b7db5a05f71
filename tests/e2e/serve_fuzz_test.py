"""Damaged requests over sockets: heads, bodies and chunks of the recorded cases with bytes changed, cut, doubled and
moved, in pieces, several on one connection. Each is answered with a proper status or the connection ends; nothing is a
fault of the server's, and it answers as before afterwards. A request without a byte for a minute is reported with the
server's state at that time and with what came later, which tells a hang from a machine that gave the server no time.
Seconds by default; DEEPINFER_TEST_ALL=1 goes on for ten minutes (FUZZ_SECONDS changes the time, FUZZ_SEED the seed).
"""
import errno
import json
import os
import pathlib
import random
import re
import socket
import tempfile
import threading
import time
import unittest

from program import SANITIZED
from server import Server

CASES = pathlib.Path(__file__).resolve().parents[1] / "api" / "cases"
ALL = bool(os.environ.get("DEEPINFER_TEST_ALL"))
SECONDS = float(os.environ.get("FUZZ_SECONDS", 600 if ALL else 4))
SEED = int(os.environ.get("FUZZ_SEED", 1))
CLIENTS = 4
LEAST = 50  # requests of each client, however late it begins
SILENT_S, LATER_S = 60, 300
TOKENS = [
    b"\r\n", b"\n", b"\0", b"\xff", b" ", b":", b"0", b"-1", b"9" * 30, b"{", b"[" * 300, b"\"", b"\\u", b"\\ud800",
    b"null", b"1e999", b"%00", b"../", b"Content-Length: 5\r\n", b"Transfer-Encoding: chunked\r\n",
    b"Expect: 100-continue\r\n", b"Connection: close\r\n", b"X: " + b"y" * 5000 + b"\r\n"]


def recorded():
    out = []
    for file in sorted(CASES.glob("*.json")):
        for case in json.loads(file.read_text()):
            request = case["steps"][0]["request"]
            body = request.get("text") or (json.dumps(request["body"], ensure_ascii=False) if "body" in request else "")
            if "{{" in body:
                continue
            body = re.sub(r'("max(?:_output)?_tokens": )\d+', r"\g<1>2", body).encode()
            method = request.get("method", "POST" if body else "GET")
            head = (f"{method} {request['path']} HTTP/1.1\r\nHost: localhost\r\nContent-Type: "
                    f"application/json\r\nContent-Length: {len(body)}\r\n\r\n")
            out.append(head.encode() + body)
    return out


class Fuzzer(threading.Thread):
    def __init__(self, server, requests, seed, until):
        super().__init__()
        self.server, self.port = server, int(server.url.rsplit(":", 1)[1])
        self.requests, self.random, self.until = requests, random.Random(seed), until
        self.sent, self.answers, self.faults = 0, {}, []

    def damaged(self):
        r, text = self.random, bytearray(self.random.choice(self.requests))
        for _ in range(r.choice((0, 1, 1, 2, 5))):
            at, way = r.randrange(len(text) + 1), r.randrange(6)
            if way == 0 and text:
                text[at % len(text)] = r.randrange(256)
            elif way == 1:
                del text[at : at + r.randrange(1, 20)]
            elif way == 2:
                text[at:at] = r.choice(TOKENS)
            elif way == 3:
                text[at:at] = text[at : at + r.randrange(1, 60)]
            elif way == 4:
                del text[at:]
            else:
                other = r.choice(self.requests)
                text[at:] = other[r.randrange(len(other)) :]
        return bytes(text)

    def read(self, s):
        reply, silent = b"", None
        while True:
            try:
                more = s.recv(1 << 16)
            except TimeoutError:
                if silent:
                    self.faults.append(
                        (self.text, f"no byte for {SILENT_S} s, nor for {LATER_S} s more\n{silent}".encode()))
                    return b""
                silent, since = self.server.state(), time.monotonic()
                s.settimeout(LATER_S)
                continue
            if silent:
                self.faults.append(
                    (self.text,
                     f"no byte for {SILENT_S} s, then {len(more)} after {time.monotonic() - since:.0f} s more\n{silent}"
                     .encode()))
                return b""
            if not more:
                return reply
            reply += more

    def one(self):
        text = self.text = self.damaged() + (self.damaged() if self.random.random() < 0.2 else b"")
        with socket.create_connection(("127.0.0.1", self.port), timeout=SILENT_S) as s:
            try:
                if self.random.random() < 0.3 and len(text) > 2:
                    cut = self.random.randrange(1, len(text))
                    s.sendall(text[:cut])
                    time.sleep(0.002)
                    s.sendall(text[cut:])
                else:
                    s.sendall(text)
                if self.random.random() < 0.2:
                    time.sleep(0.1)  # for an answer: one who stops sending counts as gone
                s.shutdown(socket.SHUT_WR)  # what is missing will not come
                reply = self.read(s)
            except OSError as error:  # the server has ended the connection; a shutdown() hears "not connected"
                if error.errno not in (errno.ECONNRESET, errno.EPIPE, errno.ENOTCONN):
                    raise
                reply = b""
        self.sent += 1
        status = re.match(rb"HTTP/1\.1 (\d{3}) ", reply)
        code = int(status[1]) if status else 0
        self.answers[code] = self.answers.get(code, 0) + 1
        if (reply and not status) or code in (500, 502):
            self.faults.append((text, reply[:500]))

    def run(self):
        while (time.monotonic() < self.until or self.sent < LEAST) and not self.faults:
            try:
                self.one()
            except OSError as error:  # nobody there
                self.faults.append((self.text, repr(error).encode()))


class ServeFuzzTest(unittest.TestCase):
    def test_damaged_requests(self):
        requests = recorded()
        self.assertGreater(len(requests), 30)
        with tempfile.TemporaryDirectory() as folder, Server("--state-dir", folder + "/state", "--body-timeout", "2",
                                                             "--header-timeout", "2", "--no-image-fetch") as server:
            once = {"model": "deepseek-v4.1-flash", "prompt": "Once upon a time", "max_tokens": 8, "temperature": 0}
            ask = lambda: server.post("/v1/completions", once)[1]["choices"]
            before = ask()
            fuzzers = [Fuzzer(server, requests, SEED * 1000 + i, time.monotonic() + SECONDS) for i in range(CLIENTS)]
            for fuzzer in fuzzers:
                fuzzer.start()
            for fuzzer in fuzzers:
                fuzzer.join()
            answers = {}
            for fuzzer in fuzzers:
                self.assertFalse(
                    fuzzer.faults, f"seed {SEED}\n" +
                    "\n".join(f"{text!r}\n{what.decode(errors='replace')}" for text, what in fuzzer.faults))
                for code, count in fuzzer.answers.items():
                    answers[code] = answers.get(code, 0) + count
            print(f"{sum(f.sent for f in fuzzers)} requests: {dict(sorted(answers.items()))}")
            self.assertGreater(answers.get(200, 0), 0)
            self.assertGreater(answers.get(400, 0), 0)
            self.assertEqual(ask(), before)
            self.assertIsNone(server.process.poll())
            if not SANITIZED:
                self.assertEqual(server.stop(), 0)


if __name__ == "__main__":
    unittest.main()
