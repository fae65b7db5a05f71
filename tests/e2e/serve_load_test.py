"""Many streams at once, and clients that vanish, stall, send half a request or nothing, while memory stays flat.

Short by default; DEEPINFER_TEST_ALL=1 runs 1,000 streams at once for ten minutes (LOAD_SECONDS changes the time). All
traffic goes to a server of the test's own on 127.0.0.1.
"""
import asyncio
import json
import os
import random
import resource
import time
import unittest

from program import SANITIZED
from serve_test import Serving

ALL = bool(os.environ.get("DEEPINFER_TEST_ALL"))
STREAMS = 1000 if ALL else 60
SECONDS = float(os.environ.get("LOAD_SECONDS", 600 if ALL else 2))
PROMPTS = ["Tell me a story.", "What is the weather in Paris?", "Count to ten.", "Hello!"]


def request(tokens, stream=True):
    body = json.dumps({
        "model": "deepseek-v4.1-flash", "messages": [{"role": "user", "content": random.choice(PROMPTS)}],
        "max_tokens": tokens, "stream": stream, "thinking": {"type": "disabled"}}).encode()
    return b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body) + body


class Load:
    def __init__(self, port):
        self.port = port
        self.whole = self.broken = self.odd = 0
        self.until = time.monotonic() + SECONDS

    async def good(self):
        """Streams to their end, one after the other on one connection."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        while True:  # once at least, however late the connection came
            writer.write(request(random.randint(1, 3)))
            text = await asyncio.wait_for(reader.readuntil(b"0\r\n\r\n"), 600)
            ok = text.startswith(b"HTTP/1.1 200") and b"data: [DONE]" in text
            self.whole += ok
            self.broken += not ok
            if time.monotonic() >= self.until:
                break
        writer.close()

    async def bad(self):
        """One of the ways in which clients fail, again and again."""
        while not self.odd or time.monotonic() < self.until:
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
            text = request(200)
            way = random.randrange(5)
            if way == 0:  # vanishes in mid-stream
                writer.write(text)
                await reader.read(100)
            elif way == 1:  # half a body
                writer.write(text[: len(text) - 20])
            elif way == 2:  # half a header, and waits
                writer.write(text[:30])
                await asyncio.sleep(random.random())
            elif way == 3:  # asks and does not read
                writer.write(text)
                await asyncio.sleep(random.random())
            else:  # nothing
                await asyncio.sleep(random.random())
            self.odd += 1
            writer.transport.abort()

    async def run(self):
        await asyncio.gather(*[self.good() for _ in range(STREAMS)], *[self.bad() for _ in range(STREAMS // 10)])


def resident(server):
    _, text = server.request("GET", "/metrics")
    values = dict(line.rsplit(" ", 1) for line in text.splitlines() if line and not line.startswith("#"))
    return float(values["process_resident_memory_bytes"]), values


@unittest.skipIf(SANITIZED, "the sanitizers' own memory hides the program's")
class LoadTest(unittest.TestCase):
    def test_many_streams_and_bad_clients(self):
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8192), hard))
        # A thousand streams and their server may get no time for minutes: nobody is sent away for that.
        patient = [word for what in ("header", "body", "idle", "write", "request")
                   for word in (f"--{what}-timeout", "1200")]
        # snapshots of windows: full soon
        with Serving("--sequences", "32", "--cache-mb", "16", *patient) as server:
            load = Load(server.port)
            load.until = time.monotonic() + SECONDS / 4
            asyncio.run(load.run())  # caches and pools fill
            before, _ = resident(server)
            load.until = time.monotonic() + SECONDS
            asyncio.run(load.run())
            for _ in range(600):
                after, values = resident(server)
                # One connection asks; the server may hear later than its client that another has ended.
                if (float(values["deepinfer_requests_running"]) + float(values["deepinfer_requests_waiting"]) == 0
                        and float(values["deepinfer_connections"]) == 1):
                    break
                time.sleep(0.1)
            print("%d streams at once: %d whole, %d odd clients, %.0f MB before, %.0f MB after" %
                  (STREAMS, load.whole, load.odd, before / 1e6, after / 1e6))
            self.assertEqual(load.broken, 0)
            self.assertGreaterEqual(load.whole, STREAMS)
            self.assertGreater(load.odd, 0)
            self.assertEqual(float(values["deepinfer_requests_running"]), 0)
            self.assertEqual(float(values["deepinfer_connections"]), 1)
            self.assertLess(after, 1.2 * before + 32e6)
            self.assertIsNone(server.process.poll())


if __name__ == "__main__":
    unittest.main()
