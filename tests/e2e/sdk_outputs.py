"""Model outputs of the encoding fixtures as API events and whole bodies, made by `deepinfer decode`; for the SDK
tests."""
import json
import pathlib
import subprocess
import tempfile

DATA = pathlib.Path("tests/data/recipe")
APIS = {"chat_completions": "chat", "responses": "responses", "messages": "messages"}


def cases():
    """Yields (name, api, body, text, finish) of every case whose engine delivers text and says why it ended."""
    for file in ("streams.json", "oracle_streams.json", "completions.json"):
        for case in json.loads((DATA / file).read_text(encoding="utf-8"))["cases"]:
            kinds = {chunk["kind"] for chunk in case["chunks"]}
            if "tokens" in kinds or "finish" not in kinds:
                continue
            text = "".join(chunk.get("content", "") for chunk in case["chunks"] if chunk["kind"] == "text")
            finish = next(chunk["finish_reason"] for chunk in case["chunks"] if chunk["kind"] == "finish")
            yield f"{file}:{case['name']}", APIS[case["protocol"]], case["body"], text, finish


def decode(program, api, body, text, finish, events):
    with tempfile.NamedTemporaryFile("w", encoding="utf-8") as request:
        json.dump(body, request)
        request.flush()
        done = subprocess.run([
            program, "decode", "--api", api, "--request", request.name, "--finish", finish, "--step", "5",
            "--prompt-tokens", "21", "--cached-tokens", "16"] + (["--events"] if events else []), input=text.encode(),
                              capture_output=True, timeout=240)
    if done.returncode:
        raise AssertionError(done.stderr.decode())
    return done.stdout


def frames(stream):
    """Splits server-sent events into (name, data)."""
    for frame in stream.decode().split("\n\n")[:-1]:
        fields = dict(line.split(": ", 1) for line in frame.split("\n"))
        yield fields.get("event"), fields["data"]
