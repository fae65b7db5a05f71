"""A GPU that is lost while the service runs: requests end with its sentence, and the service stays answerable."""
import os
import pathlib
import shutil
import tempfile
import unittest

import server
from program import PROGRAM

ROOT = pathlib.Path(__file__).resolve().parents[2]
FAKE = pathlib.Path(PROGRAM).parents[2] / "tests/unit/engine/libfake_cuda.so"
SENTENCE = "The GPU is taken for lost."


def request(tokens):
    return {"model": "deepseek-v4.1-flash", "prompt": "Once upon a time", "max_tokens": tokens, "temperature": 0}


class LostGpuTest(unittest.TestCase):
    def setUp(self):
        # The program looks for the CUDA backend beside itself.
        self.home = tempfile.TemporaryDirectory()
        server.PROGRAM = os.path.join(self.home.name, "deepinfer")
        shutil.copy(PROGRAM, server.PROGRAM)
        shutil.copy(FAKE, os.path.join(self.home.name, "libdeepinfer_cuda.so"))

    def tearDown(self):
        server.PROGRAM = PROGRAM
        self.home.cleanup()

    def test_serve_stays_answerable(self):
        env = {**os.environ, "FAKE_CUDA_ROW_SETS": "40"}
        with server.Server("--device", "cuda:2", "--drafts", "0", model=ROOT / "models/tiny", env=env) as service:
            status, body = service.post("/v1/completions", request(4))
            self.assertEqual(status, 200, body)
            for _ in range(3):
                status, body = service.post("/v1/completions", {**request(400), "ignore_eos": True})
                self.assertEqual(status, 503, body)
                self.assertEqual(body["error"]["message"], SENTENCE)
                self.assertEqual(service.get("/health")[0], 200)
            self.assertGreater(service.metric("deepinfer_engine_failed_steps_total"), 0)
            self.assertEqual(service.stop(), 0)

    def test_run_ends_with_the_sentence(self):
        env = {**os.environ, "FAKE_CUDA_ROW_SETS": "3"}
        command = [
            server.PROGRAM, "run",
            str(ROOT / "models/tiny"), "--raw", "--prompt", "Once upon a time", "--max-tokens", "400", "--device",
            "cuda:2", "--drafts", "0"]
        done = server.subprocess.run(command, env=env, capture_output=True, text=True, timeout=120,
                                     stdin=server.subprocess.DEVNULL)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn(SENTENCE, done.stderr)


if __name__ == "__main__":
    unittest.main()
