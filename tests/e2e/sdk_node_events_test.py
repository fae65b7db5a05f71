"""The official Node SDKs gather from our event streams what the whole bodies say. Test-only packages, installed below
build/; skipped where npm or its registry cannot be had."""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import sdk_outputs  # noqa: E402

PROGRAM = os.path.abspath(sys.argv.pop(1)) if len(sys.argv) > 1 else "build/release/src/app/deepinfer"
PACKAGES = ["openai@7.59.0", "@anthropic-ai/sdk@1.14.0"]
FOLDER = pathlib.Path("build/test-data/sdk-node")


def install():
    """Returns what is missing, or nothing."""
    if not shutil.which("npm"):
        return "npm is not installed"
    stamp = FOLDER / "packages.txt"
    if stamp.exists() and stamp.read_text() == " ".join(PACKAGES):
        return None
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    (FOLDER / "package.json").write_text("{}")
    done = subprocess.run(["npm", "install", "--silent", "--no-audit", "--no-fund", "--fetch-retries=1", "--fetch-timeout=20000",
                           *PACKAGES], cwd=FOLDER, capture_output=True, text=True)
    if done.returncode:
        return f"cannot install {' '.join(PACKAGES)}: {done.stderr.strip()[-300:]}"
    stamp.write_text(" ".join(PACKAGES))
    return None


class NodeSdkTest(unittest.TestCase):
    def test_streams(self):
        missing = install()
        if missing:
            print(f"SKIPPED, NOTHING WAS CHECKED: {missing}", file=sys.stderr)
            self.skipTest(missing)
        cases = [{"name": name, "api": api, "stream": sdk_outputs.decode(PROGRAM, api, body, text, finish, True).decode(),
                  "whole": sdk_outputs.decode(PROGRAM, api, body, text, finish, False).decode()}
                 for name, api, body, text, finish in sdk_outputs.cases()]
        self.assertGreater(len(cases), 30)
        done = subprocess.run(["node", "tests/e2e/sdk_node_events.mjs", str(FOLDER)], input=json.dumps(cases), capture_output=True,
                              text=True, timeout=120)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)


if __name__ == "__main__":
    unittest.main()
