"""/metrics against promtool, and the dashboard against /metrics."""
import json
import pathlib
import re
import subprocess
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
        done = subprocess.run([found.stdout.strip(), "check", "metrics"], input=self.text, capture_output=True, text=True)
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
                return float(re.search(rf'^deepinfer_kv_tier_{name}{{tier="host"}} (\S+)', server.request("GET", "/metrics")[1], re.M)[1])

            for number in range(12):
                ask(number)
            self.assertGreater(sample("writes_total"), 0)
            self.assertGreater(sample("written_bytes_total"), sample("writes_total") * 1000)
            for number in range(4):
                ask(number)
            self.assertGreater(sample("hits_total"), 0)
            self.assertGreater(sample("read_bytes_total"), 0)
            self.assertGreater(sample("read_seconds_total"), 0)
            self.assertEqual(sample("damaged_total"), 0)

    def test_the_dashboard_uses_metrics_that_exist(self):
        names = set(re.findall(r"^(\w+?)(?:_bucket|_sum|_count)?(?:\{| )", self.text, re.M))
        names |= {"deepinfer_limits_hit_total"}  # made when a limit is hit
        dashboard = pathlib.Path("docs/dashboards/grafana.json").read_text()
        used = set(re.findall(r"\b(deepinfer_\w+|process_\w+)\{", " ".join(t["expr"] for p in json.loads(dashboard)["panels"] for t in p["targets"])))
        self.assertGreater(len(used), 12)
        self.assertEqual({re.sub(r"_bucket$", "", n) for n in used} - names, set())


if __name__ == "__main__":
    unittest.main()
