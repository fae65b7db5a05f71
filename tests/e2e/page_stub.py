"""The page's built files with a service behind them that does what a test wants: wrong keys, errors, streams that
break."""

import http.server
import json
import pathlib
import threading

DIST = pathlib.Path(__file__).resolve().parents[2] / "web" / "dist"
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript",
    ".css": "text/css",
    ".svg": "image/svg+xml",
    ".txt": "text/plain",
}
POLICY = ("default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri "
          "'none'; form-action 'none'; frame-ancestors 'none'")


class Stub:
    """`answer(handler, body)` handles POST /v1/chat/completions; `key` is the key that is wanted, if any."""

    def __init__(self):
        self.answer, self.key, self.bodies = None, None, []
        stub = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def send(self, status, kind, data, **headers):
                self.send_response(status)
                self.send_header("content-type", kind)
                self.send_header("content-length", str(len(data)))
                for name, value in headers.items():
                    self.send_header(name.replace("_", "-"), value)
                self.end_headers()
                self.wfile.write(data)

            def send_json(self, status, value, **headers):
                self.send(status, "application/json", json.dumps(value).encode(), **headers)

            def stream(self, *frames):
                """Events, then the end of the connection."""
                self.send_response(200)
                self.send_header("content-type", "text/event-stream")
                self.send_header("connection", "close")
                self.end_headers()
                for frame in frames:
                    self.wfile.write(
                        frame
                        if isinstance(frame, bytes)
                        else f"data: {frame if isinstance(frame, str) else json.dumps(frame)}\n\n".encode()
                    )
                    self.wfile.flush()
                self.close_connection = True

            def refused(self):
                if stub.key is None or self.headers.get("authorization") == f"Bearer {stub.key}":
                    return False
                self.send_json(
                    401,
                    {
                        "error": {
                            "message": "Authentication Fails, Your api key: ****none is invalid",
                            "type": "authentication_error",
                            "param": None,
                            "code": "invalid_request_error",
                        }
                    },
                )
                return True

            def do_GET(self):
                if self.path == "/v1/models":
                    if not self.refused():
                        self.send_json(
                            200,
                            {
                                "object": "list",
                                "data": [{"id": "stub-model", "object": "model", "context_length": 4096}],
                            },
                        )
                elif self.path == "/version":
                    self.send_json(200, {"name": "deepinfer", "version": "0.0.0"})
                elif self.path == "/metrics":
                    self.send(200, "text/plain", b"")
                else:
                    file = DIST / (self.path.lstrip("/") or "index.html")
                    if file.is_file() and DIST in file.resolve().parents:
                        self.send(200, TYPES[file.suffix], file.read_bytes(), content_security_policy=POLICY)
                    else:
                        self.send(404, "text/plain", b"")

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                stub.bodies.append(body)
                if not self.refused():
                    stub.answer(self, body)

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()


def chunk(delta, finish=None, usage=None, **more):
    return {
        "id": "x",
        "object": "chat.completion.chunk",
        "created": 0,
        "model": "stub-model",
        "choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish, **more}],
        "usage": usage,
    }


def settle(page):
    """Waits until what the page has begun to save is saved."""
    page.eval("""new Promise((done, failed) => {
        const opening = indexedDB.open("deepinfer");
        opening.onerror = failed;
        opening.onsuccess = () => {
            const table = opening.result.transaction("conversations", "readwrite").objectStore("conversations");
            table.count().onsuccess = () => { opening.result.close(); done(true); };
        };
    })""")


USAGE = {
    "prompt_tokens": 3,
    "completion_tokens": 2,
    "total_tokens": 5,
    "prompt_tokens_details": {"cached_tokens": 1},
    "completion_tokens_details": {"reasoning_tokens": 0},
}


def say(text):
    """An answer function that streams `text`."""

    def answer(handler, _):
        handler.stream(
            chunk({"role": "assistant", "content": ""}),
            chunk({"content": text}),
            chunk({"content": ""}, "stop", USAGE),
            "[DONE]",
        )

    return answer
