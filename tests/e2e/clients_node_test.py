"""The official Node clients against `deepinfer serve` with the bundled model; skipped where npm or its registry cannot
be had."""

import pathlib
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import sdk_install  # noqa: E402
from program import SANITIZED  # noqa: E402
from server import Server  # noqa: E402


class NodeClientsTest(unittest.TestCase):
    def test_clients(self):
        missing = "needs a build without sanitizers" if SANITIZED else sdk_install.install_node()
        if missing:
            print(f"SKIPPED, NOTHING WAS CHECKED: {missing}", file=sys.stderr)
            self.skipTest(missing)
        with Server() as server:
            done = subprocess.run(
                ["node", "tests/e2e/clients_node.mjs", str(sdk_install.NODE_FOLDER), server.url],
                capture_output=True,
                text=True,
                timeout=240,
            )
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertRegex(done.stdout, r"^\d\d passed, 0 failed")


if __name__ == "__main__":
    unittest.main()
