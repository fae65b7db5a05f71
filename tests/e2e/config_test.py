"""The option table from outside: files, environment, flags, --print-config, refusals."""
import os
import pathlib
import subprocess
import tempfile
import unittest

from program import PROGRAM


class ConfigTest(unittest.TestCase):
    def setUp(self):
        self.home = tempfile.TemporaryDirectory()
        self.file = os.path.join(self.home.name, "deepinfer.toml")

    def tearDown(self):
        self.home.cleanup()

    def run_program(self, *args, env=None, code=0):
        result = subprocess.run([PROGRAM, *args],
                                env={"PATH": os.environ["PATH"], "HOME": self.home.name, **(env or {})},
                                capture_output=True, text=True, timeout=240, stdin=subprocess.DEVNULL)
        self.assertEqual(result.returncode, code, result.stderr)
        return result

    def write(self, text):
        pathlib.Path(self.file).write_text(text)
        return self.file

    def test_print_config_names_the_place_of_each_value(self):
        self.write("[model]\nthreads = 2\n[engine]\nrows = 300\nsequences = 9\n")
        for args, env in ((("--config", self.file), {}), ((), {"DEEPINFER_CONFIG": self.file})):
            out = self.run_program("generate", "in.jsonl", "-o", "out.jsonl", "--print-config", "--sequences", "4",
                                   *args, env={"DEEPINFER_ROWS": "128", **env}).stdout
            self.assertIn("sequences = 4  # from --sequences\n", out)
            self.assertIn("rows = 128  # from DEEPINFER_ROWS\n", out)
            self.assertRegex(out, r"threads = 2  # from threads in \[model\] of .*deepinfer.toml \(line 2\)\n")
            self.assertIn("cache = true  # default\n", out)
        self.write(out)
        again = self.run_program("generate", "in.jsonl", "-o", "out.jsonl", "--print-config", "--config",
                                 self.file).stdout
        strip = lambda text: [line.split("  # ")[0] for line in text.splitlines()]
        self.assertEqual(strip(again), strip(out))

    def test_a_file_changes_an_answer(self):
        args = ("run", "--raw", "--prompt", "Once upon a time", "-q")
        self.write("[sampling]\ntemperature = 0\nmax_tokens = 5\n[output]\njson = true\n")
        self.assertIn('"completion_tokens": 5', self.run_program(*args, "--config", self.file).stdout)
        self.assertIn('"completion_tokens": 3',
                      self.run_program(*args, "--config", self.file, "--max-tokens", "3").stdout)

    def test_refusals(self):
        self.assertIn("DEEPINFER_THREADS?",
                      self.run_program("run", "--prompt", "x", env={"DEEPINFER_THREDS": "1"}, code=2).stderr)
        self.write("[model]\nthread = 1\n")
        for args in (("run", "--prompt", "x", "--config", self.file), ("config", self.file)):
            self.assertIn("Did you mean threads?", self.run_program(*args, code=2).stderr)
        self.assertIn("contradict",
                      self.run_program("run", "--prompt", "x", "--thinking", "on", "--no-thinking", code=2).stderr)
        self.write("[model]\nthreads = 1\n")
        self.run_program("config", self.file)
        self.assertIn(
            "no effect",
            self.run_program("run", "--prompt", "x", "--max-tokens", "1", env={"DEEPINFER_NCCL_NUM_SMS": "8"}).stderr)


if __name__ == "__main__":
    unittest.main(verbosity=1)
