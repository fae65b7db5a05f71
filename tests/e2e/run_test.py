"""deepinfer run for one answer: goldens through the whole program, flags, defaults, where the model is found."""
import json
import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

from program import PROGRAM, SANITIZED

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUNDLED = ROOT / "models" / "tiny"
GREEDY = json.loads((ROOT / "tests/data/model/greedy.json").read_text())["prompts"]
EXACT = ("--backend", "reference", "--prefill", "full", "--temperature", "0", "--max-tokens", "64")
EOS = "<｜end▁of▁sentence｜>"


class RunTest(unittest.TestCase):
    def setUp(self):
        self.home = tempfile.TemporaryDirectory()

    def tearDown(self):
        self.home.cleanup()

    def run_program(self, *args, program=PROGRAM, data=None, env=None):
        environment = {"PATH": os.environ["PATH"], "HOME": self.home.name, **(env or {})}
        result = subprocess.run([program, "run", *args], env=environment, input=data,
                                stdin=None if data else subprocess.DEVNULL, capture_output=True, timeout=240)
        self.assertEqual(result.returncode, 0, result.stderr.decode())
        return result

    def text(self, *args, **more):
        return self.run_program("-q", *args, **more).stdout.decode()

    def json(self, *args, **more):
        return json.loads(self.run_program("-q", "--json", *args, **more).stdout)

    def test_goldens_as_raw_text(self):
        for case in GREEDY[4:6] if SANITIZED else GREEDY:
            answer = self.json("--raw", *EXACT, data=case["prompt"].encode())
            self.assertEqual(answer["content"] + (EOS if answer["finish_reason"] == "stop" else ""), case["text"])
            self.assertEqual(answer["usage"]["prompt_tokens"], len(case["prompt_ids"]))
            self.assertEqual(answer["usage"]["completion_tokens"], len(case["continuation_ids"]))

    def test_goldens_as_chat(self):
        story = next(c for c in GREEDY if "brave mouse" in c["prompt"])
        answer = self.json("--no-thinking", "--prompt", "Tell me a short story about a brave mouse.", *EXACT)
        self.assertEqual((answer["content"], answer["finish_reason"]), (story["text"], "length"))
        capital = next(c for c in GREEDY if "capital of France" in c["prompt"])
        answer = self.json("--thinking", "off", "--system", "You are a helpful assistant.", "--prompt",
                           "What is the capital of France?", *EXACT)
        self.assertEqual(answer["content"] + EOS, capital["text"])
        dog = next(c for c in GREEDY if "name for my dog" in c["prompt"])
        answer = self.json("--prompt", "Can you help me choose a name for my dog?", *EXACT)
        self.assertEqual(answer["reasoning_content"] + "</think>" + answer["content"] + EOS, dog["text"])
        self.assertEqual(answer["usage"]["reasoning_tokens"], dog["continuation_ids"].index(
            next(i for i in dog["continuation_ids"] if i == self.think_close())))

    # SANITIZED: its allocator keeps freed memory, so that --ram means nothing there.
    @unittest.skipIf(SANITIZED, "memory is counted otherwise")
    def test_little_memory_gives_the_same_answer(self):
        common = ("--prompt", "What is a cat?", "--context", "2048", "--temperature", "0", "--max-tokens", "24")
        whole = self.run_program(*common)
        environment = {"PATH": os.environ["PATH"], "HOME": self.home.name}
        little = subprocess.run([PROGRAM, "run", "--ram", "1MB", *common], env=environment, stdin=subprocess.DEVNULL,
                                capture_output=True, timeout=240)
        self.assertEqual(little.returncode, 2, little.stderr.decode())
        self.assertIn("--ram", little.stderr.decode())
        for megabytes in range(10, 200, 2):
            result = subprocess.run([PROGRAM, "run", "--ram", f"{megabytes}MB", *common], env=environment,
                                    stdin=subprocess.DEVNULL, capture_output=True, timeout=240)
            if result.returncode == 0:
                break
            self.assertIn("--ram", result.stderr.decode())
        self.assertEqual(result.returncode, 0)
        self.assertEqual(result.stdout, whole.stdout)
        self.assertRegex(result.stderr.decode(), r"weights: .* of 152 experts cached, .* read from the SSD")

    def think_close(self):
        added = json.loads((BUNDLED / "tokenizer.json").read_text())["added_tokens"]
        return next(t["id"] for t in added if t["content"] == "</think>")

    def test_raw_puts_bos_first_unless_it_is_there(self):
        plain = self.text("--raw", "--prompt", "One cold morning, the fox", *EXACT)
        spelled = self.text("--raw", "--prompt", "<｜begin▁of▁sentence｜>One cold morning, the fox", *EXACT)
        self.assertEqual(plain, spelled)

    def test_chat_text_cannot_spell_special_tokens(self):
        few = self.json("--no-thinking", "--prompt", "x", "--max-tokens", "1")["usage"]["prompt_tokens"]
        many = self.json("--no-thinking", "--prompt", "<｜User｜>", "--max-tokens", "1")["usage"]["prompt_tokens"]
        self.assertGreater(many, few + 2)

    def test_seed_decides(self):
        args = ("--prompt", "Tell me a story.", "--no-thinking", "--max-tokens", "30")
        self.assertEqual(self.text(*args, "--seed", "5"), self.text(*args, "--seed", "5"))
        self.assertEqual(self.text(*args, "--seed", "5"), self.text(*args, "--seed", "5", "--threads", "3"))
        self.assertEqual(len({self.text(*args, "--seed", str(s)) for s in (5, 6, 7)}), 3)
        self.assertNotEqual(self.json(*args)["seed"], self.json(*args)["seed"])

    def test_greedy_does_not_depend_on_the_seed_and_top_k_1_is_greedy(self):
        args = ("--prompt", "Tell me a story.", "--no-thinking", "--max-tokens", "30")
        greedy = self.text(*args, "--temperature", "0", "--seed", "1")
        self.assertEqual(greedy, self.text(*args, "--temperature", "0", "--seed", "2"))
        self.assertEqual(greedy, self.text(*args, "--top-k", "1", "--seed", "3"))
        self.assertEqual(greedy, self.text(*args, "--top-p", "1e-9", "--seed", "4"))

    def test_defaults_come_from_generation_config(self):
        model = pathlib.Path(self.home.name) / "model"
        model.mkdir()
        for path in BUNDLED.iterdir():
            (model / path.name).symlink_to(path)
        args = ("--prompt", "Tell me a story.", "--no-thinking", "--max-tokens", "30")
        greedy = self.text(*args, "--temperature", "0")
        for text in ('{"do_sample": false}', '{"temperature": 0.0}', '{"top_k": 1}'):
            (model / "generation_config.json").unlink()
            (model / "generation_config.json").write_text(text)
            self.assertEqual(self.text(str(model), *args, "--seed", "9"), greedy, text)
            self.assertNotEqual(
                self.text("--model", str(model), *args, "--seed", "9", "--temperature", "1.5", "--top-k", "-1"), greedy,
                text)

    def test_stop_and_length(self):
        args = ("--raw", "--prompt", "Once upon a time", "--temperature", "0")
        whole = self.text(*args, "--max-tokens", "60")
        stop = whole[40:47]
        answer = self.json(*args, "--max-tokens", "60", "--stop", "never said", "--stop", stop)
        self.assertEqual(answer["finish_reason"], "stop_sequence")
        self.assertEqual(answer["content"], whole[:whole.index(stop)])
        answer = self.json(*args, "--max-tokens", "7")
        self.assertEqual((answer["finish_reason"], answer["usage"]["completion_tokens"]), ("length", 7))
        answer = self.json(*args, "--context", "20")
        self.assertEqual(answer["finish_reason"], "context_full")
        self.assertEqual(answer["usage"]["prompt_tokens"] + answer["usage"]["completion_tokens"], 20)

    def test_prompt_on_standard_input(self):
        args = ("--no-thinking", "--temperature", "0", "--max-tokens", "20")
        self.assertEqual(self.text(*args, data=b"Tell me a story.\n"), self.text(*args, "--prompt", "Tell me a story."))

    def test_prefill_tail_is_full_for_a_short_prompt(self):
        args = ("--raw", "--prompt", "Once upon a time", "--temperature", "0", "--max-tokens", "40")
        self.assertEqual(self.text(*args, "--prefill", "tail"), self.text(*args, "--prefill", "full"))

    def test_figures_go_to_standard_error(self):
        result = self.run_program("--prompt", "Hi", "--no-thinking", "--max-tokens", "5")
        self.assertRegex(result.stderr.decode(),
                         r"\d+ prompt tokens at [\d.]+ tokens/s, 5 answer tokens at [\d.]+ tokens/s")
        self.assertNotIn(b"tokens/s", result.stdout)
        self.assertEqual(self.run_program("-q", "--prompt", "Hi", "--max-tokens", "5").stderr, b"")

    def test_where_the_bundled_model_is_found(self):
        prefix = pathlib.Path(self.home.name) / "prefix"
        (prefix / "bin").mkdir(parents=True)
        (prefix / "share/deepinfer/models").mkdir(parents=True)
        shutil.copy(PROGRAM, prefix / "bin/deepinfer")
        (prefix / "share/deepinfer/models/tiny").symlink_to(BUNDLED)
        answer = self.json("--prompt", "Hi", "--max-tokens", "2", program=str(prefix / "bin/deepinfer"))
        self.assertEqual(answer["model"], str(prefix / "share/deepinfer/models/tiny"))
        self.assertEqual(self.json("--prompt", "Hi", "--max-tokens", "2")["model"], str(BUNDLED))
        answer = self.json("--prompt", "Hi", "--max-tokens", "2",
                           env={"DEEPINFER_HF_MODEL_DIR": str(prefix / "share/deepinfer/models/tiny")})
        self.assertEqual(answer["model"], str(prefix / "share/deepinfer/models/tiny"))

    def test_nothing_is_fetched_unasked(self):
        result = subprocess.run([PROGRAM, "run", "org/model", "--prompt", "Hi"], capture_output=True, text=True,
                                timeout=240, env={
                                    "PATH": os.environ["PATH"], "HOME": self.home.name,
                                    "HF_ENDPOINT": "http://127.0.0.1:1"})
        self.assertEqual(result.returncode, 2)
        self.assertIn("deepinfer pull org/model", result.stderr)
        self.assertFalse((pathlib.Path(self.home.name) / ".cache").exists())


if __name__ == "__main__":
    unittest.main(verbosity=1)
