"""The committed files of the page are what its sources give, and what they may be. The build needs npm and its
registry: it runs with DEEPINFER_TEST_ALL=1 and is skipped where they cannot be had."""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

WEB = pathlib.Path(__file__).resolve().parents[2] / "web"
SCRIPT_BYTES_MAX = 200 << 10


class PageDistTest(unittest.TestCase):
    def test_small_self_contained_and_without_maps(self):
        files = {str(p.relative_to(WEB / "dist")): p.read_bytes() for p in (WEB / "dist").rglob("*") if p.is_file()}
        self.assertIn("index.html", files)
        self.assertLess(sum(len(data) for name, data in files.items() if name.endswith(".js")), SCRIPT_BYTES_MAX)
        self.assertEqual([name for name in files if name.endswith(".map")], [])
        page = files["index.html"].decode()
        for address in re.findall(r'(?:src|href)="([^"]*)"', page):
            self.assertIn(address.removeprefix("./"), files)
        self.assertNotRegex(
            page, r"<script(?![^>]*\bsrc=)[^>]*>|<style|\son\w+=|style="
        )  # allowed by script-src 'self'
        for name, data in files.items():
            self.assertNotRegex(data, rb"sourceMappingURL|\beval\(|new Function|@import|url\(", name)

    def test_sources_never_write_markup(self):
        for path in (WEB / "src").rglob("*.ts*"):
            self.assertNotRegex(
                path.read_text(),
                r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|createContextualFragment|DOMParser",
                path.name,
            )

    def test_is_what_the_sources_give(self):
        if not os.environ.get("DEEPINFER_TEST_ALL"):
            self.skipTest("runs with ./test.sh --all")
        with tempfile.TemporaryDirectory() as home:
            for name in (
                "src",
                "public",
                "index.html",
                "package.json",
                "package-lock.json",
                "tsconfig.json",
                "vite.config.ts",
                ".npmrc",
            ):
                path = WEB / name
                (shutil.copytree if path.is_dir() else shutil.copy)(path, pathlib.Path(home) / name)
            missing = self.install(home)
            if missing:
                print(f"SKIPPED, NOTHING WAS CHECKED: {missing}", file=sys.stderr)
                self.skipTest(missing)
            done = subprocess.run(
                ["npm", "run", "--silent", "build"], cwd=home, capture_output=True, text=True, timeout=300
            )
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            built, committed = pathlib.Path(home) / "dist", WEB / "dist"
            names = sorted(str(p.relative_to(committed)) for p in committed.rglob("*") if p.is_file())
            self.assertEqual(sorted(str(p.relative_to(built)) for p in built.rglob("*") if p.is_file()), names)
            for name in names:
                self.assertEqual(
                    (built / name).read_bytes(),
                    (committed / name).read_bytes(),
                    f"{name} is not what web/src gives; run npm run build in web/",
                )

    def install(self, home):
        """What is missing, or nothing."""
        if not shutil.which("npm"):
            return "npm is not installed"
        version = subprocess.run(["node", "--version"], capture_output=True, text=True).stdout.strip()
        if tuple(map(int, version.lstrip("v").split(".")[:2])) < (20, 19):
            return f"vite needs Node 20.19, this is {version}"
        done = subprocess.run(
            ["npm", "ci", "--silent", "--no-audit", "--no-fund", "--fetch-retries=1", "--fetch-timeout=20000"],
            cwd=home,
            capture_output=True,
            text=True,
            timeout=300,
        )
        return f"npm ci: {done.stderr.strip()[-300:]}" if done.returncode else None


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
