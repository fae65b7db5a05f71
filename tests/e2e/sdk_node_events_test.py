"""The official Node SDKs gather from our event streams what the whole bodies say. Test-only packages, installed below
build/; skipped where npm or its registry cannot be had."""
import json
import os
import pathlib
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import sdk_install  # noqa: E402
import sdk_outputs  # noqa: E402

PROGRAM = os.path.abspath(sys.argv.pop(1)) if len(sys.argv) > 1 else "build/release/src/app/deepinfer"


class NodeSdkTest(unittest.TestCase):
    def test_streams(self):
        missing = sdk_install.install_node()
        if missing:
            print(f"SKIPPED, NOTHING WAS CHECKED: {missing}", file=sys.stderr)
            self.skipTest(missing)
        cases = [{
            "name": name, "api": api, "stream": sdk_outputs.decode(PROGRAM, api, body, text, finish, True).decode(),
            "whole": sdk_outputs.decode(PROGRAM, api, body, text, finish, False).decode()}
                 for name, api, body, text, finish in sdk_outputs.cases()]
        self.assertGreater(len(cases), 30)
        done = subprocess.run(["node", "tests/e2e/sdk_node_events.mjs",
                               str(sdk_install.NODE_FOLDER)], input=json.dumps(cases), capture_output=True, text=True,
                              timeout=240)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)


if __name__ == "__main__":
    unittest.main()
