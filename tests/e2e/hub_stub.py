"""A small Hugging Face hub on loopback, with faults on request.

    hub = Hub({"config.json": b"{}", "model.safetensors": blob})     # serves org/model, revision main
    hub.url, hub.log                                                 # requests seen, as (method, path, headers)
    hub.cut_after["model.safetensors"] = 1000                        # each reply of that file ends after so many bytes
"""
import hashlib
import http.server
import json
import re
import threading
import urllib.parse

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def git_blob_id(data):
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


class Server(http.server.ThreadingHTTPServer):
    def handle_error(self, request, client_address):
        pass  # a client that was killed or stopped


class Hub:
    def __init__(self, files, lfs=(".safetensors",), repo="org/model"):
        self.files, self.repo = dict(files), repo
        self.lfs = {name for name in files if name.endswith(lfs)}
        self.log, self.lock = [], threading.Lock()
        self.cut_after = {}          # file -> bytes per reply
        self.cuts_left = {}          # file -> replies still to be cut; absent: all
        self.no_ranges = False
        self.claimed_digest = {}     # file -> digest instead of the true one
        self.claimed_size = {}
        self.hide_digests = False    # leave them out of the list, so that HEAD has to give them
        self.status = {}             # file or "list" -> status to answer with
        self.status_left = {}        # file or "list" -> how many times; absent: always
        self.token = None            # needed when set
        self.cdn = None              # another Hub that the content is redirected to
        self.renamed_from = None     # old repository name, answered by a relative redirect
        self.after_bytes = None      # called with the total of content bytes sent so far
        self.sent = 0
        self.server = Server(("127.0.0.1", 0), self._handler())
        self.server.daemon_threads = True
        self.url = "http://127.0.0.1:%d" % self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()

    def digest(self, name):
        data = self.files[name]
        true = hashlib.sha256(data).hexdigest() if name in self.lfs else git_blob_id(data)
        return self.claimed_digest.get(name, true)

    def listing(self):
        siblings = []
        for name, data in self.files.items():
            entry = {"rfilename": name}
            if not self.hide_digests:
                entry["size"] = self.claimed_size.get(name, len(data))
                entry["blobId"] = git_blob_id(data)
                if name in self.lfs:
                    entry["lfs"] = {"sha256": self.digest(name), "size": entry["size"], "pointerSize": 130}
                else:
                    entry["blobId"] = self.digest(name)
            siblings.append(entry)
        return json.dumps({"id": self.repo, "sha": COMMIT, "siblings": siblings}).encode()

    def requests(self, part):
        return [entry for entry in self.log if part in entry[1]]

    def _fault(self, key):
        with self.lock:
            if key not in self.status or self.status_left.get(key, 1) == 0:
                return None
            if key in self.status_left:
                self.status_left[key] -= 1
            return self.status[key]

    def _handler(hub):
        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *args):
                pass

            def reply(self, status, headers, body=b""):
                self.send_response(status)
                for key, value in headers.items():
                    self.send_header(key, value)
                if "Content-Length" not in headers:
                    self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body)

            def do_HEAD(self):
                self.do_GET()

            def do_GET(self):
                path = urllib.parse.unquote(self.path.split("?")[0])
                with hub.lock:
                    hub.log.append((self.command, path, {k.lower(): v for k, v in self.headers.items()}))
                if hub.renamed_from and hub.renamed_from in path:
                    return self.reply(307, {"Location": self.path.replace(hub.renamed_from, hub.repo)})
                if hub.token and self.headers.get("Authorization") != "Bearer " + hub.token:
                    return self.reply(401, {}, b"Invalid username or password.")
                if path.startswith("/api/models/%s/revision/" % hub.repo):
                    fault = hub._fault("list")
                    return self.reply(fault, {}) if fault else self.reply(200, {"Content-Type": "application/json"},
                                                                          hub.listing())
                match = re.fullmatch("/%s/resolve/%s/(.*)" % (re.escape(hub.repo), COMMIT), path)
                content = re.fullmatch("/content/(.*)", path)
                name = (match or content).group(1) if match or content else None
                if name not in hub.files:
                    return self.reply(404, {}, b"Entry not found")
                fault = hub._fault(name)
                if fault:
                    return self.reply(fault, {})
                headers = {"X-Repo-Commit": COMMIT}
                if match and name in hub.lfs:
                    headers.update({
                        "X-Linked-Etag": '"%s"' % hub.digest(name), "X-Linked-Size": str(len(hub.files[name]))})
                    base = hub.cdn.url if hub.cdn else ""
                    return self.reply(302, {**headers, "Location": base + "/content/" + urllib.parse.quote(name)})
                headers["ETag"] = '"%s"' % hub.digest(name)
                self.content(name, headers)

            def content(self, name, headers):
                data, status, begin = hub.files[name], 200, 0
                wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
                total = len(data)
                if wanted and not hub.no_ranges:
                    begin, end = int(wanted.group(1)), int(wanted.group(2)) + 1
                    if begin >= total:
                        return self.reply(416, {})
                    data, status = data[begin:end], 206
                    headers["Content-Range"] = "bytes %d-%d/%d" % (begin, begin + len(data) - 1, total)
                headers["Content-Length"] = str(len(data))
                self.send_response(status)
                for key, value in headers.items():
                    self.send_header(key, value)
                self.end_headers()
                if self.command == "HEAD":
                    return
                cut = hub.cut_after.get(name)
                with hub.lock:
                    if cut is not None and name in hub.cuts_left:
                        cut = cut if hub.cuts_left[name] > 0 else None
                        hub.cuts_left[name] -= 1
                    hub.sent += len(data[:cut])
                    sent = hub.sent
                if hub.after_bytes:
                    hub.after_bytes(sent)
                try:
                    self.wfile.write(data[:cut])
                    if cut is not None and cut < len(data):
                        self.wfile.flush()
                        self.close_connection = True
                        self.connection.shutdown(2)
                except OSError:
                    pass

        return Handler
