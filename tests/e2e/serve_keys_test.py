"""Keys, TLS, Unix socket and SIGHUP of deepinfer serve, with the programs that a user has."""
import http.client
import json
import os
import pathlib
import shutil
import signal
import socket
import ssl
import subprocess
import tempfile
import time
import unittest

from program import PROGRAM
from serve_test import CHAT, WAIT_S, Serving


class LocalConnection(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("localhost", timeout=WAIT_S)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(self.path)


def keys(*arguments):
    return subprocess.run([PROGRAM, "keys", *arguments], capture_output=True, text=True, timeout=WAIT_S)


class KeysTest(unittest.TestCase):
    def setUp(self):
        self.dir = pathlib.Path(tempfile.mkdtemp())
        self.file = str(self.dir / "keys.jsonl")

    def tearDown(self):
        shutil.rmtree(self.dir)

    def test_keys_are_made_listed_and_removed(self):
        key = keys("add", "alice", "--keys", self.file, "--concurrent", "2").stdout.strip()
        self.assertRegex(key, r"^di-[0-9A-Za-z]{43}$")
        self.assertNotIn(key, pathlib.Path(self.file).read_text())
        self.assertEqual(os.stat(self.file).st_mode & 0o777, 0o600)
        self.assertEqual(keys("add", "alice", "--keys", self.file).returncode, 2)
        self.assertIn("alice", keys("list", "--keys", self.file).stdout)
        self.assertEqual(keys("add", "a b", "--keys", self.file).returncode, 2)
        self.assertEqual(keys("remove", "alice", "--keys", self.file).returncode, 0)
        self.assertEqual(keys("remove", "alice", "--keys", self.file).returncode, 2)
        self.assertEqual(keys("list").returncode, 2)

    def test_sighup_reads_keys_and_limits_again(self):
        key = keys("add", "alice", "--keys", self.file).stdout.strip()
        config = self.dir / "config.toml"
        config.write_text("[serve]\nmax_body_mb = 2\n")
        auth = {"Authorization": "Bearer " + key}
        large = {**CHAT, "x": "y" * (1500 << 10)}
        with Serving("--keys", self.file, "--config", str(config)) as server:
            self.assertEqual(server.request("GET", "/v1/models", headers=auth)[0].status, 200)
            self.assertEqual(server.request("POST", "/v1/chat/completions", large, auth)[0].status, 200)
            keys("add", "bob", "--keys", self.file)
            keys("remove", "alice", "--keys", self.file)
            config.write_text("[serve]\nmax_body_mb = 1\n")
            other = keys("add", "carol", "--keys", self.file).stdout.strip()
            server.process.send_signal(signal.SIGHUP)
            for _ in range(10 * WAIT_S):
                if server.request("GET", "/v1/models", headers=auth)[0].status == 401:
                    break
                time.sleep(0.1)
            self.assertEqual(server.request("GET", "/v1/models", headers=auth)[0].status, 401)
            self.assertEqual(server.request("POST", "/v1/chat/completions", large, {"x-api-key": other})[0].status, 413)

    @unittest.skipUnless(shutil.which("openssl"), "needs openssl")
    def test_tls_and_a_unix_socket(self):
        key, cert, path = (str(self.dir / n) for n in ("key.pem", "cert.pem", "socket"))
        subprocess.run([
            "openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", cert, "-days", "2",
            "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"], check=True,
                       capture_output=True)
        os.chmod(key, 0o600)
        with Serving("--tls-certificate", cert, "--tls-key", key, "--listen", "unix:" + path, scheme="https") as server:
            context = ssl.create_default_context(cafile=cert)
            connection = http.client.HTTPSConnection("127.0.0.1", server.port, timeout=WAIT_S, context=context)
            for _ in range(2):
                connection.request("POST", "/v1/chat/completions", json.dumps({**CHAT, "stream": True}))
                self.assertTrue(connection.getresponse().read().endswith(b"data: [DONE]\n\n"))
            local = LocalConnection(path)
            local.request("GET", "/v1/models")
            self.assertEqual(local.getresponse().status, 200)
            with self.assertRaises((http.client.HTTPException, OSError)):
                server.request("GET", "/health")
            server.process.send_signal(signal.SIGTERM)
            self.assertEqual(server.process.wait(WAIT_S), 0)
            self.assertFalse(os.path.exists(path))


if __name__ == "__main__":
    unittest.main()
