"""The room check finds none in this tree, and does find one that is planted."""
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[3]


def check(src):
    return subprocess.run([sys.executable, ROOT / "tools/check_rooms.py", src], capture_output=True, text=True)


class Rooms(unittest.TestCase):
    def test_tree(self):
        result = check(ROOT / "src")
        self.assertEqual(result.returncode, 0, result.stdout)

    def test_planted(self):
        with tempfile.TemporaryDirectory() as d:
            src = pathlib.Path(d)
            for name, text in {
                    "base/a.h": '#include "text/b.h"\n', "text/b.h": '#include "base/a.h"\n', "cellar/c.h": "",
                    "model/m.h": '#include "m2.h"\n', "kv/k.h": '#include "model/m.h"\n'}.items():
                (src / name).parent.mkdir(exist_ok=True)
                (src / name).write_text(text)
            out = check(src)
            self.assertEqual(out.returncode, 1)
            lines = out.stdout.splitlines()
            self.assertEqual(len(lines), 4, lines)
            for word in ("base may not include text/b.h", "'cellar' is not a room", 'include "m2.h"',
                         "kv may not include model/m.h"):
                self.assertIn(word, out.stdout)


if __name__ == "__main__":
    unittest.main()
