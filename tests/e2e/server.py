"""`deepinfer serve` for a test: on a free loopback port, with the bundled model unless told otherwise.

with Server() as server:
    server.post("/v1/chat/completions", {...})     # (status, parsed body)
"""

import json
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import time
import urllib.error
import urllib.request

from program import PROGRAM

START_S = 240


class Server:
    def __init__(self, *args, model=None, env=None):
        self.log = tempfile.TemporaryFile("w+b")
        command = [PROGRAM, "serve", *([str(model)] if model else []), "--port", "0", "--access-log", "", *args]
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log, env=env)
        self.url = None
        end = time.monotonic() + START_S
        while self.url is None:
            found = re.search(r"https?://127\.0\.0\.1:\d+", self.output())
            if found:
                self.url = found[0]
            elif self.process.poll() is not None or time.monotonic() > end:
                raise AssertionError(f"deepinfer serve did not start:\n{self.output()}")
            else:
                time.sleep(0.02)

    def output(self):
        self.log.seek(0)
        return self.log.read().decode(errors="replace")

    def request(self, path, body=None, method=None, headers=None):
        """(status, body): the body parsed where it is JSON, else text."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            self.url + path, data, {"content-type": "application/json", **(headers or {})}, method=method
        )
        try:
            with urllib.request.urlopen(request, timeout=240) as response:
                status, kind, text = response.status, response.headers.get("content-type", ""), response.read().decode()
        except urllib.error.HTTPError as error:
            status, kind, text = error.code, error.headers.get("content-type", ""), error.read().decode()
        return status, json.loads(text) if kind.startswith("application/json") else text

    def get(self, path, **more):
        return self.request(path, **more)

    def post(self, path, body, **more):
        return self.request(path, body, **more)

    def metric(self, name):
        """The sum of a metric over its labels."""
        _, text = self.get("/metrics")
        values = [float(m[1]) for m in re.finditer(rf"^{name}(?:{{.*}})? (\S+)", text, re.M)]
        if not values:
            raise AssertionError(f"/metrics has no {name}")
        return sum(values)

    def state(self):
        """What the program is doing, to tell a program that hangs from one that gets no CPU: of each thread its state,
        its CPU seconds, the seconds for which it was ready but another process ran, and, where gdb is installed, its
        stack."""
        out = [f"load {os.getloadavg()}, nice {os.getpriority(os.PRIO_PROCESS, self.process.pid)}"]
        for task in sorted(pathlib.Path(f"/proc/{self.process.pid}/task").glob("*")):
            try:
                ran, waited, _ = (int(n) / 1e9 for n in (task / "schedstat").read_text().split())
                state = (task / "stat").read_text().rsplit(")", 1)[1].split()[0]
                out.append(
                    f"{task.name} {(task / 'comm').read_text().strip()}: {state}, ran {ran:.3f} s, ready but not run "
                    f"{waited:.3f} s"
                )
            except OSError:
                continue
        if shutil.which("gdb"):
            command = ["gdb", "-p", str(self.process.pid), "-batch", "-ex", "thread apply all backtrace 25"]
            try:
                done = subprocess.run(command, capture_output=True, text=True, timeout=240, stdin=subprocess.DEVNULL)
                out += [line for line in done.stdout.splitlines() if line.startswith(("#", "Thread "))]
            except subprocess.TimeoutExpired:
                out.append("gdb did not end within 120 s")
        return "\n".join(out)

    def stop(self):
        """Ends the service as a supervisor would; returns its exit code."""
        if self.process.poll() is None:
            self.process.terminate()
        try:
            return self.process.wait(240)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()
        self.log.close()
