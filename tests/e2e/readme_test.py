"""The first calls of README.md run as they stand there, against a live server. The clients are installed below build/;
skipped where they cannot be had."""

import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import sdk_install  # noqa: E402

try:
    import anthropic  # noqa: F401
    import openai  # noqa: F401
except ImportError:
    sdk_install.enter_python(__file__)

from program import SANITIZED  # noqa: E402
from server import Server  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
ADDRESS = "http://127.0.0.1:8000"


class ReadmeTest(unittest.TestCase):
    def test_first_calls(self):
        if SANITIZED:
            self.skipTest("needs a build without sanitizers")
        text = (ROOT / "README.md").read_text()
        blocks = [(kind, code) for kind, code in re.findall(r"```(\w+)\n(.*?)```", text, re.S) if ADDRESS in code]
        self.assertEqual([kind for kind, _ in blocks], ["sh", "python", "python"])
        with Server() as server, tempfile.TemporaryDirectory() as home:
            for number, (kind, code) in enumerate(blocks):
                with self.subTest(code.split("\n")[0]):
                    command = ["bash", "-c", code] if kind == "sh" else [sys.executable, "-c", code]
                    command[-1] = command[-1].replace(ADDRESS, server.url)
                    done = subprocess.run(
                        command,
                        capture_output=True,
                        text=True,
                        timeout=240,
                        cwd=home,
                        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
                    )
                    self.assertEqual((done.returncode, done.stderr), (0, ""))
                    self.assertTrue(done.stdout.strip())
                    if number == 0:
                        self.assertTrue(json.loads(done.stdout)["choices"][0]["message"]["content"])

    def test_links_and_pictures_exist(self):
        for name in ("README.md", "docs/page.md", "web/README.md"):
            page = ROOT / name
            for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
                if not target.startswith("http"):
                    self.assertTrue((page.parent / target).resolve().exists(), f"{name}: {target}")


if __name__ == "__main__":
    unittest.main()
