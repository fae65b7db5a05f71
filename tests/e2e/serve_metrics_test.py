"""/metrics against promtool, and the dashboard against /metrics."""
import json
import pathlib
import re
import subprocess
import tempfile
import time
import unittest

from program import PROGRAM  # noqa: F401 (takes the program from the arguments)
from serve_test import CHAT, Serving


class MetricsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with Serving("--kv-host-mb", "16") as server:
            server.request("POST", "/v1/chat/completions", CHAT)
            server.request("POST", "/v1/chat/completions", {**CHAT, "temperature": 9})
            cls.response, cls.text = server.request("GET", "/metrics")

    def test_promtool_finds_nothing_to_say(self):
        found = subprocess.run(["tools/fetch_promtool.sh"], capture_output=True, text=True)
        if found.returncode != 0:
            self.skipTest("no promtool: " + found.stderr.strip()[-200:])
        done = subprocess.run([found.stdout.strip(), "check", "metrics"], input=self.text, capture_output=True,
                              text=True)
        self.assertEqual((done.returncode, done.stdout + done.stderr), (0, ""))
        self.assertTrue(self.response.getheader("content-type").startswith("text/plain; version=0.0.4"))

    def test_tiers_are_counted_by_name(self):
        # A small device cache: what leaves it goes to host memory and comes back from there.
        story = "Tell me a long story about the number %d. " * 40
        with Serving("--kv-host-mb", "64", "--sequences", "1", "--context", "1024") as server:
            def ask(number):
                body = {**CHAT, "messages": [{"role": "user", "content": story % ((number,) * 40)}], "max_tokens": 1}
                response, text = server.request("POST", "/v1/chat/completions", body)
                self.assertEqual(response.status, 200, text)

            def sample(name):
                text = server.request("GET", "/metrics")[1]
                return sum(
                    float(m[1])
                    for m in re.finditer(rf'^deepinfer_kv_tier_{name}{{[^}}]*tier="host"[^}}]*}} (\S+)', text, re.M))

            for number in range(12):
                ask(number)
            self.assertGreater(sample("writes_total"), 0)
            self.assertGreater(sample("written_bytes_total"), sample("writes_total") * 1000)
            for number in range(4):
                ask(number)
            self.assertGreater(sample("hits_total"), 0)
            self.assertGreater(sample("read_bytes_total"), 0)
            self.assertEqual(sample("hit_seconds_count"), sample("hits_total"))
            self.assertGreater(sample("hit_seconds_sum"), 0)
            self.assertEqual(sample("damaged_total"), 0)

    def test_tiers_are_counted_by_key_and_traffic(self):
        tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
        with tempfile.TemporaryDirectory() as folder:
            file = folder + "/keys.jsonl"
            add = [PROGRAM, "keys", "add", "--keys", file]
            key = {
                name: subprocess.run([*add, name], capture_output=True, text=True).stdout.strip()
                for name in ("alice", "bob")}
            with Serving("--kv-host-mb", "64", "--keys", file) as server:
                def ask(name, **more):
                    words = " ".join(f"{name} {i} saw a fox." for i in range(60))
                    body = {**CHAT, "messages": [{"role": "user", "content": words}], "max_tokens": 1, **more}
                    response, text = server.request("POST", "/v1/chat/completions", body,
                                                    {"Authorization": "Bearer " + key[name]})
                    self.assertEqual(response.status, 200, text)

                ask("alice", user="one")
                ask("alice", user="two")  # a user is not a label: names of people do not belong into metrics
                ask("bob", tools=[tool])
                for _ in range(600):
                    text = server.request("GET", "/metrics", headers={"Authorization": "Bearer " + key["bob"]})[1]
                    found = {(m[2], m[1]): float(m[3])
                             for m in re.finditer(
                                 r'^deepinfer_kv_tier_writes_total{tenant="(.*)",tier="host",traffic="(.*)"} (\S+)',
                                 text, re.M)
                             if float(m[3])}
                    if len(found) == 2:
                        break
                    time.sleep(0.1)
        self.assertEqual(set(found), {("chat", "alice"), ("agent", "bob")})
        self.assertGreater(found["chat", "alice"], found["agent", "bob"])

    def test_the_dashboard_uses_metrics_that_exist(self):
        names = set(re.findall(r"^(\w+?)(?:_bucket|_sum|_count)?(?:\{| )", self.text, re.M))
        names |= {"deepinfer_limits_hit_total"}  # made when a limit is hit
        dashboard = pathlib.Path("docs/dashboards/grafana.json").read_text()
        used = set(
            re.findall(r"\b(deepinfer_\w+|process_\w+)\{",
                       " ".join(t["expr"] for p in json.loads(dashboard)["panels"] for t in p["targets"])))
        self.assertGreater(len(used), 12)
        self.assertEqual({re.sub(r"_bucket$", "", n) for n in used} - names, set())


if __name__ == "__main__":
    unittest.main()
