"""schemathesis against a live service: requests made from /openapi.json, right and wrong ones, and chains of them.

No answer may have a status that its operation does not name, a body that its schema forbids, or a server's error; wrong
requests must be refused. Some seconds by default; DEEPINFER_TEST_ALL=1 goes on for ten minutes (FUZZ_SECONDS changes
the time). Requests that the document allows and the service refuses are no failure here: a schema cannot say that each
tool call has its answer. Nor is a slow answer on a busy machine; one that does not come within two minutes is.
"""
import json
import os
import pathlib
import re
import subprocess
import tempfile
import unittest

from program import SANITIZED
from server import Server

ROOT = pathlib.Path(__file__).resolve().parents[2]
ALL = bool(os.environ.get("DEEPINFER_TEST_ALL"))
SECONDS = int(os.environ.get("FUZZ_SECONDS", 600 if ALL else 8))
PHASES = "examples,coverage,fuzzing,stateful" if ALL else "examples,coverage,fuzzing"


def schemathesis():
    done = subprocess.run([ROOT / "tools/test_venv.sh", "build/test-data/schemathesis-venv", "schemathesis==4.32.5"],
                          capture_output=True, text=True)
    if done.returncode != 0:
        raise unittest.SkipTest(done.stderr.strip())
    return pathlib.Path(done.stdout.strip()).parent / "schemathesis"


class OpenApiFuzzTest(unittest.TestCase):
    def run_schemathesis(self, program, folder, document, url, seconds):
        command = [
            program, "run", document, "--url", url, "--checks", "all", "--exclude-checks", "positive_data_acceptance",
            "--max-response-time", "120", "--phases", PHASES, "--max-examples", "100" if ALL else "5",
            "--max-time", str(seconds), "--seed", str(os.environ.get("FUZZ_SEED", 1)), "--continue-on-failure",
            "--request-timeout", "120"]
        done = subprocess.run(command, capture_output=True, text=True, cwd=folder, timeout=seconds * 3 + 200)
        said = done.stdout + done.stderr
        self.assertEqual(done.returncode, 0, said)
        return said

    def test_every_answer_is_as_the_document_says(self):
        program = schemathesis()
        with (tempfile.TemporaryDirectory() as folder,
              Server("--state-dir", folder + "/state", "--context", "512") as server):
            document = pathlib.Path(folder) / "openapi.json"  # fetched here: schemathesis waits ten seconds for it
            document.write_text(json.dumps(server.get("/openapi.json")[1]))
            # A machine that stood still may have used the time up before the first request: then again, with more.
            for seconds in (SECONDS,) if ALL else (SECONDS, 4 * SECONDS, 16 * SECONDS):
                said = self.run_schemathesis(program, folder, document, server.url, seconds)
                counted = re.search(r"(\d+) generated", said)
                if counted and int(counted[1]) > (100 if ALL else 0):
                    break
            else:
                self.fail(said)
            print(counted[0])
            self.assertEqual(server.get("/health"), (200, {"status": "ok"}))
            self.assertIsNone(server.process.poll())
            if not SANITIZED:
                self.assertEqual(server.stop(), 0)


if __name__ == "__main__":
    unittest.main()
