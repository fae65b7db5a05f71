"""deepinfer run in a terminal of its own (a pseudo-terminal): the chat, its commands, Ctrl-C, history, and where it
cannot write."""
import errno
import json
import os
import pathlib
import pty
import re
import select
import signal
import stat
import tempfile
import time
import unittest

from program import PROGRAM

TIMEOUT_S = 120
CTRL_C, CTRL_D, UP = b"\x03", b"\x04", b"\x1b[A"


class Terminal:
    """A program that believes a person sits before it."""

    def __init__(self, args, env):
        self.screen, self.mark = b"", 0
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.execve(PROGRAM, [PROGRAM, "run", *args], env)
        self.code = None

    def pump(self, seconds):
        if not select.select([self.fd], [], [], seconds)[0]:
            return True
        try:
            data = os.read(self.fd, 65536)
        except OSError as e:
            if e.errno != errno.EIO:
                raise
            data = b""
        self.screen += data
        return bool(data)

    def expect(self, pattern):
        """Waits for the pattern behind the last match and returns the match."""
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            found = re.compile(pattern, re.S).search(self.screen, self.mark)
            if found:
                self.mark = found.end()
                return found
            if time.monotonic() > deadline or not self.pump(0.5):
                raise AssertionError("no %r in %r" % (pattern, self.screen[self.mark:]))

    def send(self, data):
        os.write(self.fd, data)

    def line(self, text):
        """Types a line once the prompt stands there."""
        self.expect(rb"> ")
        self.send(text.encode() + b"\r")

    def wait(self):
        deadline = time.monotonic() + TIMEOUT_S
        while self.pump(0.2) and time.monotonic() < deadline:
            pass
        _, status = os.waitpid(self.pid, 0)
        os.close(self.fd)
        self.code = os.waitstatus_to_exitcode(status)
        return self.code

    def kill(self):
        if self.code is None:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            os.close(self.fd)


class ChatTest(unittest.TestCase):
    def setUp(self):
        self.home = tempfile.TemporaryDirectory()
        self.state = pathlib.Path(self.home.name) / "state"
        self.terminals = []

    def tearDown(self):
        for t in self.terminals:
            t.kill()
        self.home.cleanup()

    def start(self, *args, **more):
        env = {
            "PATH": os.environ["PATH"], "HOME": self.home.name, "XDG_STATE_HOME": str(self.state), "TERM": "xterm",
            **more}
        t = Terminal(["--seed", "3", "--max-tokens", "24", *args], env)
        self.terminals.append(t)
        t.expect(rb"/help for commands")
        return t

    def end(self, t):
        t.expect(rb"> ")
        t.send(CTRL_D)
        self.assertEqual(t.wait(), 0, t.screen)

    def test_answers_figures_and_end(self):
        t = self.start("--no-thinking")
        t.line("Tell me a story.")
        t.expect(rb"Tell me a story\.\r\n.*?\w")
        t.line("/stats")
        t.expect(rb"prompt tokens at [\d.]+ tokens/s, \d+ answer tokens")
        before = t.screen.count(b" answer tokens")
        self.end(t)
        self.assertEqual(t.screen.count(b" answer tokens"), before + 1)

    def test_thinking_is_dim_and_plain_without_colour(self):
        t = self.start()
        t.line("Tell me a story.")
        t.expect(rb"story\.\r\n\x1b\[2m[^\x1b]*\w[^\x1b]*\x1b\[0m")
        self.end(t)
        t = self.start(NO_COLOR="1")
        t.line("Tell me a story.")
        t.expect(rb"story\.\r\n\[thinking\] .*?\w.*?\[/thinking\]")
        self.end(t)
        self.assertNotIn(b"\x1b[2m", t.screen)

    def test_ctrl_c_stops_the_answer_only(self):
        t = self.start("--max-tokens", "20000", "--raw", "--backend", "reference")
        t.line("Once upon a time")
        t.expect(rb"time\r\n.*?\w")
        t.send(CTRL_C)
        t.expect(rb"Stopped\.")
        t.expect(rb"> ")
        t.send(b"half a line" + CTRL_C)
        t.line("/seed")
        t.expect(rb"Seed 3\.")
        self.end(t)

    def test_commands(self):
        t = self.start("--no-thinking")
        t.line("/help")
        t.expect(rb"/save FILE")
        t.line("/seed 18446744073709551615")
        t.expect(rb"Seed 18446744073709551615\.")
        t.line("/seed 1x")
        t.expect(rb'"1x" is not a seed')
        t.line("/system")
        t.expect(rb"There is no system text")
        t.line("/system Be brief.")
        t.expect(rb"A new conversation begins")
        t.line("/system")
        t.expect(rb"/system\r\n.*?Be brief\.")
        t.line("/reset")
        t.expect(rb"A new conversation begins")
        t.line("/nonsense")
        t.expect(rb"There is no command /nonsense")
        t.line("/quit")
        self.assertEqual(t.wait(), 0)

    def test_save_and_same_seed_same_answer(self):
        path = pathlib.Path(self.home.name) / "talk.json"
        answers = []
        for _ in range(2):
            t = self.start("--no-thinking", "--system", "Be kind.")
            t.line("Hello there, \u00e9\u732b\U0001f431!")
            t.line("/save " + str(path))
            t.expect(rb"Saved to ")
            self.end(t)
            saved = json.loads(path.read_text())
            self.assertEqual([m["role"] for m in saved["messages"]], ["system", "user", "assistant"])
            self.assertEqual(saved["messages"][1]["content"], "Hello there, \u00e9\u732b\U0001f431!")
            self.assertEqual(saved["seed"], 3)
            answers.append(saved["messages"][2]["content"])
        self.assertEqual(answers[0], answers[1])
        self.assertTrue(answers[0].strip())

    def test_save_that_fails_is_said(self):
        t = self.start()
        t.line("/save")
        t.expect(rb"Name the file")
        t.line("/save /proc/nothing/here")
        t.expect(rb"Not saved: .*here.*\.")
        t.line("/save /dev/full/x")
        t.expect(rb"Not saved: ")
        fifo = pathlib.Path(self.home.name) / "fifo"
        os.mkfifo(fifo)
        t.line(f"/save {fifo}")
        t.expect(rb"Not saved: .*not a regular file")
        self.assertTrue(stat.S_ISFIFO(fifo.stat().st_mode))
        self.end(t)

    def test_history_lives_on_and_is_private(self):
        t = self.start()
        t.line("/seed 77")
        t.expect(rb"Seed 77\.")
        self.end(t)
        history = self.state / "deepinfer" / "history"
        self.assertEqual(history.read_text(), "/seed 77\n")
        self.assertEqual(stat.S_IMODE(history.stat().st_mode), 0o600)
        t = self.start()
        t.expect(rb"> ")
        t.send(UP + b"8\r")
        t.expect(rb"Seed 778\.")
        self.end(t)

    def test_history_that_cannot_be_kept_is_said_once(self):
        self.state.write_text("a file where a folder should be")
        t = self.start()
        t.line("/seed 1")
        t.expect(rb"The history of this chat is not kept")
        t.line("/seed 2")
        t.expect(rb"Seed 2\.")
        self.end(t)
        self.assertEqual(t.screen.count(b"is not kept"), 1)

    def test_continued_line_and_empty_line(self):
        t = self.start("--no-thinking")
        t.line("")
        t.expect(rb"> ")
        t.send(b"first \\\r")
        t.expect(rb"\. ")
        t.send(b"second\r")
        path = pathlib.Path(self.home.name) / "talk.json"
        t.line("/save " + str(path))
        t.expect(rb"Saved to ")
        self.end(t)
        self.assertEqual(json.loads(path.read_text())["messages"][0]["content"], "first \nsecond")

    def test_prompt_too_long_leaves_the_chat_alive(self):
        t = self.start("--context", "64", "--no-thinking")
        t.line("word " * 100)
        t.expect(rb"The prompt has \d+ tokens, but the context holds 64")
        t.line("Hi.")
        t.expect(rb"Hi\.\r\n.*?\w")
        self.end(t)

    def test_one_answer_with_the_terminal_as_output(self):
        env = {"PATH": os.environ["PATH"], "HOME": self.home.name, "TERM": "xterm"}
        t = Terminal(["--prompt", "Tell me a story.", "--max-tokens", "12", "--seed", "1"], env)
        self.terminals.append(t)
        self.assertEqual(t.wait(), 0)
        self.assertIn(b"\x1b[2m", t.screen)
        self.assertIn(b"tokens/s", t.screen)


if __name__ == "__main__":
    unittest.main(verbosity=1)
