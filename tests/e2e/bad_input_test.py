"""Input that cannot be used: one clear sentence, exit code 2, no stack trace, nothing that hangs."""
import json
import os
import pathlib
import re
import resource
import shutil
import signal
import struct
import subprocess
import tempfile
import unittest

from program import PROGRAM, SANITIZED
from server import Server

BUNDLED = pathlib.Path(__file__).resolve().parents[2] / "models" / "tiny"
SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")


class BadInputTest(unittest.TestCase):
    def setUp(self):
        self.home = tempfile.TemporaryDirectory()
        self.dir = pathlib.Path(self.home.name) / "model"
        self.dir.mkdir()
        for path in BUNDLED.iterdir():
            (self.dir / path.name).symlink_to(path)

    def tearDown(self):
        self.home.cleanup()

    def own(self, name):
        """The file as a copy of its own, to be damaged."""
        path = self.dir / name
        target = path.resolve()
        path.unlink()
        shutil.copy(target, path)
        return path

    def edit_json(self, name, change):
        path = self.own(name)
        data = json.loads(path.read_text())
        change(data)
        path.write_text(json.dumps(data))

    def edit_header(self, name, change):
        path = self.own(name)
        raw = path.read_bytes()
        size = struct.unpack("<Q", raw[:8])[0]
        header = json.loads(raw[8:8 + size])
        change(header)
        text = json.dumps(header).encode()
        path.write_bytes(struct.pack("<Q", len(text)) + text + raw[8 + size:])

    def run_program(self, *args, model=None, stdin=subprocess.DEVNULL, preexec=None, stdout=subprocess.PIPE, data=None,
                    env=None):
        environment = {"PATH": os.environ["PATH"], "HOME": self.home.name, **(env or {})}
        command = [PROGRAM, "run", *([str(self.dir if model is None else model)] if model != "" else []), *args]
        return subprocess.run(command, env=environment, stdin=None if data is not None else stdin, input=data,
                              stdout=stdout, stderr=subprocess.PIPE, timeout=240, preexec_fn=preexec)

    def refused(self, *words, args=("--prompt", "Hi"), **more):
        result = self.run_program(*args, **more)
        errors = result.stderr.decode()
        self.assertEqual(result.returncode, 2, errors)
        self.assertEqual(len(errors.splitlines()), 1, errors)
        self.assertTrue(errors.startswith("deepinfer: "), errors)
        for word in words:
            self.assertIn(word, errors)
        return errors

    def test_the_copy_is_good(self):
        result = self.run_program("--prompt", "Hi", "--max-tokens", "2")
        self.assertEqual(result.returncode, 0, result.stderr)

    def test_missing_directory_and_name(self):
        self.refused("There is no folder /no/such/place", model="/no/such/place")
        self.refused("neither a folder", "deepinfer pull some-org/some-model", model="some-org/some-model")
        self.refused("config.json", model=self.home.name)
        self.refused(model=self.dir / "config.json")
        self.refused("/no/such/place", args=("--prompt", "Hi"), model="",
                     env={"DEEPINFER_HF_MODEL_DIR": "/no/such/place"})

    def test_pulled_model_is_found_by_name(self):
        cache = pathlib.Path(self.home.name) / ".cache/huggingface/hub/models--some-org--some-model"
        commit = "0123456789abcdef0123456789abcdef01234567"
        (cache / "refs").mkdir(parents=True)
        (cache / "refs" / "main").write_text(commit)
        (cache / "snapshots").mkdir()
        (cache / "snapshots" / commit).symlink_to(self.dir)
        result = self.run_program("--prompt", "Hi", "--max-tokens", "2", model="some-org/some-model")
        self.assertEqual(result.returncode, 0, result.stderr)

    def test_file_cut_in_half(self):
        for name in (*SHARDS, "config.json", "tokenizer.json", "model.safetensors.index.json", "generation_config.json",
                     "engram_token_classes.json"):
            path = self.own(name)
            content = path.read_bytes()
            path.write_bytes(content[:len(content) // 2])
            self.refused(name)
            path.write_bytes(content)

    def test_empty_file(self):
        for name in (*SHARDS, "config.json", "tokenizer.json"):
            path = self.own(name)
            content = path.read_bytes()
            path.write_bytes(b"")
            self.refused(name)
            path.write_bytes(content)

    def test_shard_missing(self):
        (self.dir / SHARDS[1]).unlink()
        self.refused(SHARDS[1])

    @unittest.skipIf(SANITIZED, "sanitizers have words of their own")
    def test_shard_cut_while_it_is_served(self):
        shards = [self.own(name) for name in SHARDS]
        with Server("--context", "1024", model=self.dir) as server:
            for path in shards:
                os.truncate(path, 4096)
            with self.assertRaises(OSError):
                server.post("/v1/completions", {"model": "deepseek-v4.1-flash", "prompt": "Once", "max_tokens": 50})
            self.assertEqual(server.process.wait(240), -signal.SIGBUS)
            self.assertIn("deepinfer: A mapped file", server.output())

    def test_pipe_in_place_of_a_file(self):
        for name in (*SHARDS, "config.json", "tokenizer.json"):
            target = (self.dir / name).resolve()
            (self.dir / name).unlink()
            os.mkfifo(self.dir / name)
            self.refused(name, "not a regular file")
            (self.dir / name).unlink()
            (self.dir / name).symlink_to(target)

    def test_file_missing(self):
        for name in ("config.json", "tokenizer.json", "engram_token_classes.json"):
            target = (self.dir / name).resolve()
            (self.dir / name).unlink()
            self.refused(name)
            (self.dir / name).symlink_to(target)

    def test_header_of_absurd_length(self):
        path = self.own(SHARDS[0])
        raw = path.read_bytes()
        for length in (1 << 63, (1 << 64) - 1, len(raw) + 1, 0):
            path.write_bytes(struct.pack("<Q", length) + raw[8:])
            self.refused(SHARDS[0])

    def test_tensor_with_a_wrong_shape(self):
        def transpose(header):
            name = next(n for n, t in sorted(header.items())
                        if n != "__metadata__" and len(t["shape"]) == 2 and t["shape"][0] != t["shape"][1])
            header[name]["shape"].reverse()
            self.name = name
        self.edit_header(SHARDS[0], transpose)
        self.refused(self.name)

    def test_tensor_whose_length_is_not_its_shape(self):
        def grow(header):
            name = next(n for n, t in sorted(header.items()) if n != "__metadata__" and len(t["shape"]) == 2)
            header[name]["shape"][0] += 1
        self.edit_header(SHARDS[0], grow)
        self.refused(SHARDS[0])

    def test_config_of_another_architecture(self):
        def llama(config):
            config["architectures"], config["model_type"] = ["LlamaForCausalLM"], "llama"
        self.edit_json("config.json", llama)
        self.refused("LlamaForCausalLM", "DeepseekV41ForCausalLM")

    def test_config_that_contradicts_itself(self):
        self.edit_json("config.json", lambda c: c["text_config"].update(num_attention_heads=7))
        self.refused("num_attention_heads")

    def test_tokenizer_of_another_model(self):
        def rename(tokenizer):
            for token in tokenizer["added_tokens"]:
                if token["content"] == "<｜begin▁of▁sentence｜>":
                    token["content"] = "<s>"
            vocab = tokenizer["model"]["vocab"]
            if "<｜begin▁of▁sentence｜>" in vocab:
                vocab["<s>"] = vocab.pop("<｜begin▁of▁sentence｜>")
        self.edit_json("tokenizer.json", rename)
        self.refused("tokenizer.json", "another model")

    def test_tokenizer_with_more_tokens_than_the_model(self):
        def grow(tokenizer):
            token = dict(tokenizer["added_tokens"][-1])
            token.update(id=9000, content="<extra>")
            tokenizer["added_tokens"].append(token)
        self.edit_json("tokenizer.json", grow)
        self.refused("tokenizer.json", "9000", "another model")

    def drop_merges(self, count):
        def change(tokenizer):
            vocab, merges = tokenizer["model"]["vocab"], tokenizer["model"]["merges"]
            for merge in merges[-count:]:
                del vocab[merge.replace(" ", "") if isinstance(merge, str) else "".join(merge)]
            del merges[-count:]
        self.edit_json("tokenizer.json", change)

    def test_tokenizer_that_lacks_padding_only(self):
        self.drop_merges(100)
        self.assertEqual(self.run_program("--prompt", "Hi", "--max-tokens", "2").returncode, 0)

    def test_tokenizer_with_far_fewer_tokens_than_the_model(self):
        self.drop_merges(1000)
        self.refused("tokenizer.json", "vocab_size", "another model")

    def test_prompts(self):
        self.refused("prompt is empty", args=("--prompt", ""))
        self.refused("prompt is empty", args=())
        self.refused("prompt is empty", args=("--raw", "--prompt", ""))
        self.refused("--raw leaves out", args=("--raw", "--prompt", "Hi", "--system", "Be kind."))
        self.refused("not valid UTF-8", "byte 4 (0xff)", args=("--prompt", b"abc\xff"))
        self.refused("not valid UTF-8", args=(), data=b"caf\xe9 au lait")
        self.refused("not valid UTF-8", args=("--prompt", "Hi", "--system", b"\xc3"))
        self.refused("not valid UTF-8", args=("--prompt", "Hi", "--stop", b"\xc3"))

    def test_prompt_over_the_context_limit(self):
        self.refused("tokens", "context holds 32", "--context", args=("--context", "32", "--prompt", "word " * 100))
        self.refused("context holds 65536", args=("--context", "65536", "--raw"), data=b"word " * 70000)
        self.refused("65536", args=("--context", "65537", "--prompt", "Hi"))

    @unittest.skipIf(SANITIZED, "needs a build without sanitizers")
    def test_out_of_memory_is_said_before_anything_is_allocated(self):
        """Under every address-space limit the program works or says in one sentence why not, and near the need it names
        it."""
        messages = []
        for mib in range(24, 84, 2):
            limit = mib << 20
            result = self.run_program("--prompt", "Hi", "--context", "65536", "--threads", "1", "--max-tokens", "2",
                                      "-q", preexec=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)))
            errors = result.stderr.decode()
            if result.returncode == 127 or "error while loading shared libraries" in errors:
                continue  # not even the program itself fits
            self.assertIn(result.returncode, (0, 2), errors)
            if result.returncode == 2:
                self.assertRegex(errors, r"^deepinfer: [^\n]+\n$")
                messages.append(errors)
        self.assertTrue(
            any(
                re.search(r"needs? [\d.]+ [MG]B of memory .* but only [\d.]+ [MG]B are left .*--context", m)
                for m in messages), messages)

    def test_full_disk_and_reader_that_left(self):
        with open("/dev/full", "wb") as full:
            self.refused("Cannot write the answer: No space left on device",
                         args=("--prompt", "Hi", "--no-thinking", "-q", "--max-tokens", "9"), stdout=full)
        read_end, write_end = os.pipe()
        os.close(read_end)
        result = self.run_program("--prompt", "Hi", "--no-thinking", "-q", stdout=write_end)
        os.close(write_end)
        self.assertEqual((result.returncode, result.stderr), (-signal.SIGPIPE, b""))

    def test_flags(self):
        for bad in (("--temperature", "3"), ("--temperature", "x"), ("--top-p", "0"), ("--seed", "-x"),
                    ("--seed", "-5"), ("--seed", "18446744073709551616"), ("--temperature", "nan"), ("--top-p", "nan"),
                    ("--max-tokens", "0"), ("--effort", "101"), ("--backend", "quick"), ("--prefill", "half"),
                    ("--threads", "0"), ("--nonsense", )):
            result = self.run_program("--prompt", "Hi", *bad)
            self.assertEqual(result.returncode, 2, bad)
            self.assertIn(bad[0], result.stderr.decode())
            self.assertTrue(result.stderr.startswith(b"deepinfer: "), result.stderr)
        self.refused("stop sequence", args=("--prompt", "Hi", "--stop", ""))

    def test_control_characters_are_shown_and_not_sent(self):
        errors = self.refused("There is no folder", model="/no/\x1b]0;title\x07")
        self.assertNotRegex(errors, "[\x1b\x07]")


class CommandsTest(unittest.TestCase):
    """What all subcommands share."""

    def refused(self, *args, words=(), **more):
        result = subprocess.run([PROGRAM, *args], stderr=subprocess.PIPE, timeout=240,
                                **{"stdout": subprocess.PIPE, "stdin": subprocess.DEVNULL, **more})
        errors = result.stderr.decode()
        self.assertEqual(result.returncode, 2, errors)
        self.assertRegex(errors, r"^deepinfer: [^\n]+\n$")
        for word in words:
            self.assertIn(word, errors)

    def test_unknown_commands_and_flags(self):
        self.refused("frobnicate", words=('no command "frobnicate"',))
        self.refused(words=("subcommand is required",))
        self.refused("serv", words=('no command "serv"', "Did you mean serve?"))
        self.refused("generate", "in", "-o", "out", "--sequence", "4",
                     words=("no option --sequence.", "Did you mean --sequences?"))
        self.refused("generate", "in", "-o", "out", "--contxt=4",
                     words=("no option --contxt.", "Did you mean --context?"))
        for command in ("run", "inspect", "encode", "decode", "generate", "pull"):
            self.refused(command, "--nonsense", words=(f"deepinfer {command} --help",))

    def test_snapshots_without_a_tier(self):
        with tempfile.TemporaryDirectory() as home:
            path = pathlib.Path(home, "in")
            path.write_text('{"prompt": "Hi"}\n')
            self.refused("generate", str(path), "-o", os.path.join(home, "out"), "-q", "--snapshot-ssd",
                         words=("--snapshot-ssd needs a tier", "--kv-ssd"))

    def test_full_disk(self):
        request = b'{"model": "deepseek-v4.1-flash", "messages": [{"role": "user", "content": "Hi"}]}'
        for args in (("inspect", BUNDLED), ("inspect", "--json", BUNDLED), ("--help",), ("encode", "-"),
                     ("decode", "-")):
            with open("/dev/full", "wb") as full, tempfile.TemporaryFile() as body:
                body.write(request)
                body.seek(0)
                self.refused(*args, stdout=full, stdin=body, words=("No space left on device",))

    def test_file_size_limit(self):
        def limit():
            resource.setrlimit(resource.RLIMIT_FSIZE, (1024, 1024))

        with tempfile.TemporaryDirectory() as home, open(f"{home}/out", "wb") as out:
            self.refused("config", "--docs", stdout=out, preexec_fn=limit, words=("Cannot write",))
            for name in "abcdefgh":  # each takes more than 128 bytes
                subprocess.run([PROGRAM, "keys", "add", name * 60, "--keys", f"{home}/keys"],
                               capture_output=True, check=True, timeout=240)
            before = pathlib.Path(f"{home}/keys").read_bytes()
            self.refused("keys", "add", "i", "--keys", f"{home}/keys", preexec_fn=limit, words=("File too large",))
            self.assertEqual(pathlib.Path(f"{home}/keys").read_bytes(), before)

    def test_closed_standard_output_is_not_taken_by_a_file(self):
        with tempfile.TemporaryDirectory() as home:
            kv = pathlib.Path(home) / "kv"
            pathlib.Path(f"{home}/in").write_text(json.dumps({"prompt": "word " * 600, "max_tokens": 1}) + "\n")
            subprocess.run([PROGRAM, "generate", f"{home}/in", "-o", f"{home}/out", "-q", "--kv-ssd", kv,
                            "--kv-ssd-gb", "1"], check=True, timeout=240)
            before = {path.name: path.read_bytes() for path in kv.iterdir()}
            self.refused("cache", "ls", kv, preexec_fn=lambda: os.close(1), words=("Cannot write",))
            self.assertEqual({path.name: path.read_bytes() for path in kv.iterdir()}, before)

    def test_endless_standard_input(self):
        for args in (("encode", "-"), ("decode", "-"), ("grammar", "match", "--kind", "regex", "--source", "a*"),
                     ("run", )):
            with open("/dev/zero", "rb") as zero:
                self.refused(*args, stdin=zero, words=("Standard input has more than",))


if __name__ == "__main__":
    unittest.main(verbosity=1)
