"""deepinfer pull against a hub on loopback: layout, faults, resuming, and what the user is told."""
import fcntl
import hashlib
import os
import pathlib
import queue
import random
import resource
import signal
import subprocess
import tempfile
import threading
import unittest

from hub_stub import COMMIT, Hub, git_blob_id
from program import PROGRAM

BLOB = random.Random(4).randbytes(5 * (1 << 20) + 777)
FILES = {
    "config.json": b'{"a": 1}', "model-00001-of-00001.safetensors": BLOB, "sub/folder/note.txt": b"hello",
    "empty.txt": b""}
BIG = "model-00001-of-00001.safetensors"


class PullTest(unittest.TestCase):
    def setUp(self):
        self.home = tempfile.TemporaryDirectory()
        self.hub = Hub(FILES)
        self.cache = pathlib.Path(self.home.name) / "hf" / "hub"
        self.repo = self.cache / "models--org--model"

    def tearDown(self):
        self.hub.close()
        self.home.cleanup()

    def environment(self, **more):
        env = {
            "PATH": os.environ["PATH"], "HOME": self.home.name, "HF_HOME": str(self.cache.parent),
            "HF_ENDPOINT": self.hub.url}
        return {**env, **more}

    def pull(self, *args, model="org/model", preexec=None, **env):
        return subprocess.run([PROGRAM, "pull", model, "--range-mib", "1", "--retries", "2", *args],
                              env=self.environment(**env), capture_output=True, text=True, timeout=240,
                              preexec_fn=preexec)

    def check_complete(self, result):
        self.assertEqual(result.returncode, 0, result.stderr)
        snapshot = self.repo / "snapshots" / COMMIT
        self.assertEqual(result.stdout.strip(), str(snapshot))
        for name, data in FILES.items():
            self.assertEqual((snapshot / name).read_bytes(), data, name)
            self.assertTrue((snapshot / name).is_symlink())
            self.assertFalse(os.readlink(snapshot / name).startswith("/"))
        self.assertEqual({p.name for p in (self.repo / "blobs").iterdir()},
                         {hashlib.sha256(BLOB).hexdigest(), *(git_blob_id(d) for n, d in FILES.items() if n != BIG)})
        self.assertEqual((self.repo / "refs" / "main").read_text(), COMMIT)

    def check_refused(self, result, *words):
        self.assertEqual(result.returncode, 2, result.stderr)
        for word in words:
            self.assertIn(word, result.stderr)
        self.assertEqual([line[:11] for line in result.stderr.splitlines() if line[:11] == "deepinfer: "],
                         ["deepinfer: "])
        self.assertFalse((self.repo / "refs" / "main").exists())

    def test_layout_and_second_pull_fetches_nothing(self):
        self.check_complete(self.pull())
        ranges = [h.get("range") for m, p, h in self.hub.requests("/content/")]
        self.assertEqual(len(ranges), 6)
        self.assertTrue(all(ranges))
        before = len(self.hub.log)
        self.check_complete(self.pull())
        self.assertEqual(len(self.hub.log), before + 1)

    def test_digests_from_head_requests(self):
        self.hub.hide_digests = True
        self.check_complete(self.pull())

    def test_cut_connections_are_taken_up_again(self):
        self.hub.cut_after[BIG] = 300_000
        self.check_complete(self.pull())
        self.assertGreater(len(self.hub.requests("/content/")), 18)

    def test_connection_that_never_gets_further(self):
        self.hub.cut_after[BIG] = 0
        self.check_refused(self.pull("--connections", "1"), "run the same command again")

    def test_server_without_ranges(self):
        self.hub.no_ranges = True
        self.check_complete(self.pull())
        self.assertEqual(len(self.hub.requests("/content/")), 1)

    def test_server_without_ranges_cut_once(self):
        self.hub.no_ranges = True
        self.hub.cut_after[BIG], self.hub.cuts_left[BIG] = 2_000_000, 1
        self.check_complete(self.pull())

    def test_wrong_sha256(self):
        self.hub.claimed_digest[BIG] = "00" * 32
        self.check_refused(self.pull(), BIG, "SHA-256", "00" * 32, hashlib.sha256(BLOB).hexdigest())
        self.assertEqual([p for p in (self.repo / "blobs").iterdir() if p.name.startswith("00" * 32)], [])

    def test_wrong_git_blob_id(self):
        self.hub.claimed_digest["config.json"] = "11" * 20
        self.check_refused(self.pull(), "config.json", "git blob id")

    def test_wrong_size(self):
        self.hub.claimed_size[BIG] = len(BLOB) - 5
        self.check_refused(self.pull(), BIG)
        self.hub.claimed_size[BIG] = len(BLOB) + 5
        self.check_refused(self.pull(), BIG)

    def test_relative_redirect_of_a_renamed_repository_keeps_the_token(self):
        self.hub.renamed_from, self.hub.token = "old/name", "hf_secret"
        result = self.pull(model="old/name", HF_TOKEN="hf_secret")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertTrue((self.cache / "models--old--name/refs/main").exists())
        self.hub.hide_digests = True
        self.assertEqual(self.pull(model="old/name", HF_TOKEN="hf_secret").returncode, 0)

    def test_token_does_not_follow_to_another_host(self):
        cdn = Hub(FILES)
        self.hub.cdn, self.hub.token = cdn, "hf_secret"
        try:
            self.check_complete(self.pull(HF_TOKEN="hf_secret"))
            self.assertGreater(len(cdn.log), 0)
            self.assertTrue(all("authorization" not in headers for _, _, headers in cdn.log))
            self.assertTrue(all(h.get("authorization") == "Bearer hf_secret" for _, _, h in self.hub.log))
        finally:
            cdn.close()

    def test_token_from_file(self):
        self.hub.token = "hf_file"
        self.cache.parent.mkdir(parents=True)
        (self.cache.parent / "token").write_text("hf_file\n")
        self.check_complete(self.pull())

    def test_login_needed_refused_and_missing(self):
        self.hub.token = "hf_secret"
        self.check_refused(self.pull(), "401", "HF_TOKEN")
        self.check_refused(self.pull(HF_TOKEN="wrong"), "401", "does not accept the token")
        self.hub.token = None
        self.check_refused(self.pull(model="org/other"), "404", "org/other")
        self.hub.status["list"] = 403
        self.check_refused(self.pull(), "403", "accept the terms")
        del self.hub.status["list"]
        self.hub.status[BIG] = 404
        self.check_refused(self.pull(), "404", BIG)

    def test_busy_hub(self):
        for key in ("list", BIG):
            self.hub.status[key], self.hub.status_left[key] = 503, 2
        self.check_complete(self.pull())
        self.hub.status_left.clear()
        self.assertEqual(self.pull(HF_HUB_CACHE=self.home.name + "/other").returncode, 2)

    def test_killed_pull_goes_on(self):
        self.hub.cut_after[BIG] = None
        killed = threading.Event()
        started = queue.Queue()

        def kill(sent):
            if sent > 3_000_000 and not killed.is_set():
                killed.set()
                started.get().send_signal(signal.SIGKILL)
        self.hub.after_bytes = kill
        process = subprocess.Popen([PROGRAM, "pull", "org/model", "--range-mib", "1", "--connections", "1"],
                                   env=self.environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        started.put(process)
        process.communicate(timeout=240)
        self.assertEqual(process.returncode, -signal.SIGKILL)
        self.hub.after_bytes = None
        self.assertFalse((self.repo / "refs" / "main").exists())
        sent = self.hub.sent
        self.check_complete(self.pull())
        self.assertLess(self.hub.sent - sent, len(BLOB) - (1 << 20))

    def test_interrupted_pull_keeps_what_it_has(self):
        started, interrupted = queue.Queue(), threading.Event()

        def interrupt(sent):
            if sent > 2_000_000 and not interrupted.is_set():  # a second one later would end the program at once
                interrupted.set()
                started.get().send_signal(signal.SIGINT)
        self.hub.after_bytes = interrupt
        process = subprocess.Popen([PROGRAM, "pull", "org/model", "--range-mib", "1", "--connections", "1"],
                                   env=self.environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        started.put(process)
        _, errors = process.communicate(timeout=240)
        self.assertEqual(process.returncode, 130, errors)
        self.assertIn("run the same command again", errors)
        self.hub.after_bytes = None
        self.check_complete(self.pull())

    def test_two_pulls_of_one_file_do_not_meet(self):
        locks = self.cache / ".locks" / "models--org--model"
        locks.mkdir(parents=True)
        with open(locks / (hashlib.sha256(BLOB).hexdigest() + ".lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self.check_refused(self.pull(), "Another program is fetching")
        self.check_complete(self.pull())

    def test_paths_that_leave_the_folder(self):
        for bad in ("../evil", "/etc/evil", "a/../../evil", "a//b", ""):
            hub = Hub({bad: b"x"})
            result = self.pull(HF_ENDPOINT=hub.url)
            hub.close()
            self.check_refused(result, "leave the model's folder")

    def test_disk_too_small_is_seen_before_anything_is_fetched(self):
        self.hub.claimed_size[BIG] = 1 << 60
        self.check_refused(self.pull(), "1152921504.6 GB", "free", "HF_HUB_CACHE")
        self.assertEqual(self.hub.requests("/resolve/"), [])

    def test_disk_that_fills_up_and_resumes(self):
        limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (2_500_000, 2_500_000))
        self.check_refused(self.pull("--connections", "1", preexec=limit), "Cannot write", "kept")
        sent = self.hub.sent
        self.check_complete(self.pull())
        self.assertLess(self.hub.sent - sent, len(BLOB) - 2 * (1 << 20) + 1000)

    def test_cache_that_cannot_be_made(self):
        blocked = os.path.join(self.home.name, "file")
        pathlib.Path(blocked).write_text("x")
        result = self.pull(HF_HUB_CACHE=blocked + "/hub")
        self.check_refused(result, "Cannot create", "HF_HUB_CACHE")
        self.assertEqual(self.hub.log, [])

    def test_bad_names(self):
        for bad in ("a/b/c", "../x", "org/", "/name", "org/na me", "org/model@", "org/model@../x", "org/model@a b",
                    "org/--x"):
            self.check_refused(self.pull(model=bad), "deepinfer: \"")
        self.assertEqual(self.hub.log, [])

    def test_hub_out_of_reach_and_not_a_hub(self):
        self.check_refused(self.pull("--retries", "50", HF_ENDPOINT="http://127.0.0.1:1"), "127.0.0.1:1",
                           "Cannot reach")
        self.check_refused(self.pull(HF_ENDPOINT="ftp://example.com"), "http://")
        self.check_refused(self.pull(HF_HUB_OFFLINE="1"), "HF_HUB_OFFLINE")
        self.hub.listing = lambda: b"<html>"
        self.check_refused(self.pull(), "HF_ENDPOINT")

    def test_proxy(self):
        proxy = Hub(FILES)
        seen = []
        proxy.log = seen
        self.pull("--retries", "0", HF_ENDPOINT="http://hub.invalid", http_proxy=proxy.url)
        proxy.close()
        self.assertTrue(seen and seen[0][1].startswith("http://hub.invalid/api/models/org/model"), seen)

    def test_verify_finds_damage_in_the_cache(self):
        self.check_complete(self.pull())
        blob = self.repo / "blobs" / hashlib.sha256(BLOB).hexdigest()
        blob.write_bytes(b"x" + BLOB[1:])
        self.assertEqual(self.pull().returncode, 0)
        self.check_complete(self.pull("--verify"))

    def test_commit_and_branch_revisions(self):
        self.assertEqual(self.pull(model="org/model@" + COMMIT).returncode, 0)
        self.assertEqual(list((self.repo).glob("refs/*")), [])
        self.assertEqual(self.pull(model="org/model@refs/pr/1").returncode, 0)
        self.assertEqual((self.repo / "refs/refs/pr/1").read_text(), COMMIT)
        self.assertIn("/revision/refs/pr/1", self.hub.log[-1][1])


if __name__ == "__main__":
    unittest.main(verbosity=1)
