"""Blocks in Ceph RADOS, ten data and two coding parts on twelve OSDs of plain files: the same answers with two OSDs
lost, and misses without errors or hangs with three. With DEEPINFER_TEST_ALL only: it takes minutes."""
import json
import os
import pathlib
import re
import subprocess
import tempfile
import time
import unittest

from ceph_cluster import CephCluster, programs_are_there
from program import PROGRAM

SYSTEM = "You are a helpful assistant. " + " ".join(f"Rule {i}: tell the truth about number {i}." for i in range(40))
QUESTIONS = [f"Tell me story number {i}." for i in range(4)]


def built_with_rados():
    done = subprocess.run([PROGRAM, "cache", "stat", "rados://pool?config=/nowhere"], capture_output=True, text=True)
    return "is not there" not in done.stderr


@unittest.skipUnless(os.environ.get("DEEPINFER_TEST_ALL"), "minutes; set DEEPINFER_TEST_ALL")
@unittest.skipUnless(programs_are_there(), "no Ceph here: apt-get install ceph-mon ceph-osd ceph-mgr ceph-common")
@unittest.skipUnless(built_with_rados(), "built without librados-dev")
class RadosTest(unittest.TestCase):
    def run_program(self, *args, code=0):
        result = subprocess.run([PROGRAM, *args], capture_output=True, text=True, timeout=250)
        self.assertEqual(result.returncode, code, result.stderr + result.stdout)
        return result.stdout + result.stderr

    def generate(self, *args):
        output = pathlib.Path(self.home.name, "out.jsonl")
        output.unlink(missing_ok=True)
        begin = time.monotonic()
        self.run_program("generate", self.input, "-o", str(output), "--sequences", "1", "--quiet", *args)
        self.seconds = time.monotonic() - begin
        lines = [json.loads(line) for line in output.read_text().splitlines()]
        answers = sorted(json.dumps(line["response"]["choices"][0]["message"]) for line in lines)
        return answers, sum(l["response"]["usage"]["prompt_tokens_details"]["cached_tokens"] for l in lines)

    def make_pool(self, ceph):
        url = f"rados://kv?config={ceph.config}"
        self.run_program("cache", "init-rados", url, "--failure-domain", "osd", "--groups", "8")
        return url

    def test_beside_rados_bench(self):
        """A figure, no condition. On a cluster of its own: what a full load leaves behind would slow the other test's
        reads."""
        build = pathlib.Path(PROGRAM).parents[2]
        bench = build / "bench" / "bench_kv"
        if not bench.exists():
            self.skipTest("bench_kv is not built")
        with CephCluster(12) as ceph:
            env = {
                **os.environ, "DEEPINFER_BENCH_RADOS": self.make_pool(ceph),
                "LD_LIBRARY_PATH": str(build / "src" / "app")}
            done = subprocess.run([bench, "rados"], env=env, capture_output=True, text=True, timeout=300)
        print(done.stdout + done.stderr, end="")
        self.assertEqual(done.returncode, 0)

    def test_lost_osds(self):
        self.home = tempfile.TemporaryDirectory()
        self.addCleanup(self.home.cleanup)
        self.input = os.path.join(self.home.name, "in.jsonl")
        with open(self.input, "w") as file:
            for question in QUESTIONS:
                messages = [{"role": "system", "content": question + SYSTEM}, {"role": "user", "content": question}]
                file.write(json.dumps({"messages": messages, "max_tokens": 10, "temperature": 0}) + "\n")
        cold, _ = self.generate("--no-cache")
        with CephCluster(12) as ceph:
            url = f"rados://kv?config={ceph.config}"
            self.assertIn("init-rados",
                          self.run_program("generate", self.input, "-o", self.input + ".o", "--kv-remote", url, code=2))
            for _ in range(2):  # once more changes nothing
                self.make_pool(ceph)
            profile = ceph.ceph("osd", "pool", "get", "kv", "erasure_code_profile")
            self.assertIn("k=10", ceph.ceph("osd", "erasure-code-profile", "get", profile.split()[-1]))
            ceph.wait_for(lambda: re.search(r"(\d+) pgs: \1 active\+clean;", ceph.ceph("pg", "stat")))
            remote = ("--kv-remote", url)
            self.assertEqual(self.generate(*remote), (cold, 0))
            answers, all_cached = self.generate(*remote)
            self.assertEqual(answers, cold)
            self.assertGreaterEqual(all_cached, 256 * len(QUESTIONS))
            for i in (3, 8):
                ceph.osds[i].kill()
            ceph.wait_for(lambda: "10 up" in ceph.ceph("osd", "stat"))
            ceph.wait_for(lambda: "peering" not in ceph.ceph("pg", "stat"))
            time.sleep(5)
            # A block that comes late is computed, which is no loss; sooner or later all of them come in time.
            cached = []

            def all_came():
                answers, n = self.generate(*remote)
                self.assertEqual(answers, cold, "two OSDs of twelve were lost")
                cached.append(n)
                return n == all_cached

            ceph.wait_for(all_came)
            print(f"with two OSDs lost: {cached} tokens from the cache")
            ceph.osds[5].kill()
            answers, _ = self.generate(*remote)
            self.assertEqual(answers, cold, "just after the loss of a third OSD")
            ceph.wait_for(lambda: "9 up" in ceph.ceph("osd", "stat"))
            answers, cached = self.generate(*remote)
            self.assertEqual(answers, cold, "three OSDs of twelve were lost")
            self.assertLess(cached, all_cached)
            print(f"cached {all_cached}, {all_cached} with two OSDs lost, {cached} with three in {self.seconds:.1f} s")


if __name__ == "__main__":
    unittest.main()
