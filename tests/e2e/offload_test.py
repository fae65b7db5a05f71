"""deepinfer run with weights on the SSD, from outside: killed at work, files cut at work, and (DEEPINFER_TEST_ALL=1) a
checkpoint of 3.6 GB in a memory control group that holds less than half of it."""
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import tempfile
import unittest

from program import PROGRAM, SANITIZED

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUNDLED = ROOT / "models" / "tiny"
MAKE = pathlib.Path(PROGRAM).parents[2] / "tools" / "make_random_checkpoint"
SOME_READ = r"weights: .* of \d+ experts cached, .* read from the SSD"
ASK = ("--prompt", "Tell me a long story.", "--no-thinking", "--context", "2048", "--temperature", "0")


def snapshot(folder):
    return {
        str(p): (p.stat().st_size, p.stat().st_mtime_ns)
        for p in sorted(pathlib.Path(folder).rglob("*"))
        if p.is_file()}


class MemoryGroup:
    """A memory control group below this process's own; `made` is false where the system allows none."""

    def __init__(self, limit):
        self.made = False
        for line in pathlib.Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers and "memory" not in controllers.split(","):
                continue
            root, name = ("memory", "memory.limit_in_bytes") if controllers else ("", "memory.max")
            self.folder = pathlib.Path("/sys/fs/cgroup") / root / path.lstrip("/") / f"deepinfer-test-{os.getpid()}"
            try:
                self.folder.mkdir()
                (self.folder / name).write_text(str(limit))
                self.made = True
                return
            except OSError:
                if self.folder.exists():
                    self.folder.rmdir()

    def join(self):
        (self.folder / "cgroup.procs").write_text(str(os.getpid()))

    def close(self):
        if self.made:
            self.folder.rmdir()


class Offload(unittest.TestCase):
    def setUp(self):
        self.scratch = tempfile.TemporaryDirectory()
        self.home = pathlib.Path(self.scratch.name) / "home"
        self.home.mkdir()

    def tearDown(self):
        self.scratch.cleanup()

    def start(self, model, *args, join=None):
        environment = {"PATH": os.environ["PATH"], "HOME": str(self.home), "TMPDIR": str(self.home)}
        return subprocess.Popen([PROGRAM, "run", str(model), *ASK, *args], env=environment, stdin=subprocess.DEVNULL,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=join, bufsize=0)

    def run_program(self, model, *args, join=None):
        process = self.start(model, *args, join=join)
        out, err = process.communicate(timeout=280)
        return process.returncode, out, err.decode()

    # With as little memory as will do, and its first words are there. What the program itself takes differs from run to
    # run.
    def start_with_little(self, model, *args):
        megabytes = 1
        for _ in range(20):
            process = self.start(model, "--ram", f"{megabytes}MB", *args)
            if process.stdout.read(1):
                return process
            _, err = process.communicate()
            self.assertEqual(process.returncode, 2, err.decode())
            megabytes = max(megabytes + 1, int(re.search(rb"--ram (\d+)MB", err)[1]))
        self.fail(err.decode())

    def kill(self, process, model, files):
        process.send_signal(signal.SIGKILL)
        process.communicate()
        self.assertEqual(process.returncode, -signal.SIGKILL)
        self.assertEqual(snapshot(model), files)
        self.assertEqual(snapshot(self.home), {})

    def test_a_kill_leaves_nothing_behind(self):
        code, expected, err = self.run_program(BUNDLED, "--max-tokens", "40")
        self.assertEqual(code, 0, err)
        files = snapshot(BUNDLED)
        self.kill(self.start_with_little(BUNDLED, "--max-tokens", "1500"), BUNDLED, files)
        again = self.start_with_little(BUNDLED, "--max-tokens", "40")
        out, err = again.communicate(timeout=280)
        self.assertEqual(again.returncode, 0, err.decode())
        self.assertEqual(out, expected[1:])  # the first byte has been read
        self.assertRegex(err.decode(), SOME_READ)

    def test_a_file_cut_at_work_is_a_clear_error(self):
        model = pathlib.Path(self.scratch.name) / "model"
        shutil.copytree(BUNDLED, model)
        process = self.start_with_little(model, "--max-tokens", "1500")
        process.send_signal(signal.SIGSTOP)
        for file in model.glob("*.safetensors"):
            os.truncate(file, 4096)
        process.send_signal(signal.SIGCONT)
        _, err = process.communicate(timeout=280)
        self.assertGreater(process.returncode, 0, err.decode())
        self.assertIn("the file was cut", err.decode())
        self.assertIn(".safetensors", err.decode())

    @unittest.skipUnless(os.environ.get("DEEPINFER_TEST_ALL") and not SANITIZED, "long; DEEPINFER_TEST_ALL=1 runs it")
    def test_gigabytes_without_being_told(self):
        config = json.loads((BUNDLED / "config.json").read_text())
        config["text_config"].update(hidden_size=1024, moe_intermediate_size=1024, n_routed_experts=256)
        model = pathlib.Path(self.scratch.name) / "model"
        (self.home / "config.json").write_text(json.dumps(config))
        subprocess.run([MAKE, "--config", self.home / "config.json", model], check=True, capture_output=True)
        (self.home / "config.json").unlink()
        for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json", "engram_token_classes.json"):
            shutil.copy(BUNDLED / name, model)
        self.assertGreater(sum(size for size, _ in snapshot(model).values()), 3_500_000_000)
        code, expected, err = self.run_program(model, "--max-tokens", "20")
        self.assertEqual(code, 0, err)
        self.assertNotIn("read from the SSD", err)
        self.assertGreater(len(expected), 20)
        group = MemoryGroup(1_600_000_000)
        if not group.made:
            self.skipTest("this system allows no memory control group")
        try:
            for _ in range(2):
                code, out, err = self.run_program(model, "--max-tokens", "20", join=group.join)
                self.assertEqual(code, 0, err)
                self.assertEqual(out, expected)
                self.assertRegex(err, SOME_READ)
                files = snapshot(model)
                process = self.start(model, "--max-tokens", "1500", join=group.join)
                self.assertTrue(process.stdout.read(1))
                self.kill(process, model, files)
        finally:
            group.close()


if __name__ == "__main__":
    unittest.main()
