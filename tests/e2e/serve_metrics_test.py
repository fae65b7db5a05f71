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
        with Serving() as server:
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

    def test_the_dashboard_uses_metrics_that_exist(self):
        names = set(re.findall(r"^(\w+?)(?:_bucket|_sum|_count)?(?:\{| )", self.text, re.M))
        names |= {"deepinfer_limits_hit_total"}  # made when a limit is hit
        dashboard = pathlib.Path("docs/dashboards/grafana.json").read_text()
        used = set(re.findall(r"\b(deepinfer_\w+|process_\w+)\{", " ".join(t["expr"] for p in json.loads(dashboard)["panels"] for t in p["targets"])))
        self.assertGreater(len(used), 12)
        self.assertEqual({re.sub(r"_bucket$", "", n) for n in used} - names, set())


if __name__ == "__main__":
    unittest.main()
