"""The Python package as DeepInfer 0.1.0's own example uses it (spec/deepinfer.md T4, T5, T7, E1, E12, E13, E22), and
what is better here: results that line up, one object with everything, errors that name the parameter."""
import copy
import json
import os
import pathlib
import pickle
import re
import signal
import subprocess
import sys
import threading
import time
import unittest
import warnings

import numpy as np

from deepinfer import LLM, Answer, SamplingParams, TokenOutputs

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODEL = str(ROOT / "models/tiny")
PROMPTS = [
    "Hello, my name is", "The president of the United States is", "The capital of France is", "The future of AI is"]


def greedy(max_tokens=12, **more):
    return SamplingParams(temperature=0, max_tokens=max_tokens, **more)


class LlmTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.llm = LLM(model=MODEL, trust_remote_code=True, expert_parallel_size=1, max_model_len=512, max_num_seqs=16,
                      threads=2)

    @classmethod
    def tearDownClass(cls):
        cls.llm.close()

    def test_example(self):  # E1: a list of prompts goes in, completions come out
        outputs = self.llm.generate(PROMPTS, SamplingParams(temperature=0.8, top_p=0.95, max_tokens=16, seq_seed=1))
        self.assertEqual(len(outputs), len(PROMPTS))
        for text in outputs:
            self.assertIsInstance(text, str)
            self.assertTrue(text)
            self.assertEqual(f"{text}", str(text))

    def test_everything_is_on_the_string(self):  # Y3
        a = self.llm.generate(PROMPTS[0], greedy(8, logprobs=True, top_logprobs=3, prompt_logprobs=True),
                              logits=True)[0]
        self.assertEqual((a.token_ids.dtype, a.token_ids.shape), (np.int32, (8,)))
        self.assertEqual(a, self.llm.get_tokenizer().decode(a.token_ids))
        self.assertEqual((a.finish_reason, a.error), ("length", None))
        self.assertEqual(a.usage["completion_tokens"], 8)
        self.assertEqual(a.usage["prompt_tokens"], len(a.prompt_token_ids))
        self.assertEqual(a.usage["total_tokens"], 8 + len(a.prompt_token_ids))
        self.assertGreater(a.timings["total_s"], a.timings["first_token_s"])
        self.assertEqual((a.logits.dtype, a.logits.shape), (np.float32, (8, self.llm.get_tokenizer().vocab_size)))
        np.testing.assert_array_equal(a.logits.argmax(axis=1), a.token_ids)
        self.assertEqual(len(a.prompt_logprobs), len(a.prompt_token_ids))
        self.assertIsNone(a.prompt_logprobs[0])
        for other in (copy.copy(a), pickle.loads(pickle.dumps(a))):
            self.assertEqual((other, list(other.token_ids), other.usage), (a, list(a.token_ids), a.usage))

    def test_logits_of_a_prompt_and_logprobs(self):
        a = self.llm.generate([PROMPTS[2]], greedy(6, raw_logprobs=True, logprobs=True, full_prefill=True),
                              logits=True)[0]
        rows = self.llm.logits(np.concatenate([a.prompt_token_ids, a.token_ids[:-1]]))
        np.testing.assert_array_equal(rows[len(a.prompt_token_ids) - 1:], a.logits)
        log_softmax = a.logits - np.log(np.exp(a.logits.astype(np.float64)).sum(axis=1, keepdims=True))
        np.testing.assert_allclose(a.logprobs, log_softmax[np.arange(6), a.token_ids], atol=1e-5)

    def test_processed_logprobs(self):  # T4: after temperature, top-p and top-k; the floor is -9999
        p = SamplingParams(temperature=0.7, top_p=0.9, top_k=5, max_tokens=10, top_logprobs=8, seq_seed=3)
        a = self.llm.generate(PROMPTS[1], p, logits=True)[0]
        for i, top in enumerate(a.top_logprobs):
            self.assertLessEqual(len(top), 5)
            self.assertAlmostEqual(sum(np.exp(x) for _, x, _ in top), 1, places=6)
            z = a.logits[i].astype(np.float64) / 0.7
            for (first, x, _), (second, y, _) in zip(top, top[1:]):
                self.assertAlmostEqual(x - y, z[first] - z[second], places=3)
            self.assertIn(a.logprobs[i], [x for _, x, _ in top])

    def test_token_outputs(self):  # T7
        plain = self.llm.generate(PROMPTS, greedy(5))
        outputs = self.llm.generate(PROMPTS, greedy(5, top_logprobs=2, prompt_logprobs=True), decode_sequence=False)
        for tokens, answer in zip(outputs, plain):
            self.assertIsInstance(tokens, TokenOutputs)
            self.assertEqual([t.token_id for t in tokens], answer.token_ids.tolist())
            self.assertEqual([t.is_finished for t in tokens], [False] * 4 + [True])
            self.assertEqual([t.output_len for t in tokens], [1, 2, 3, 4, 5])
            self.assertEqual([t.finish_reason for t in tokens], [None] * 4 + ["length"])
            self.assertTrue(all(t.max_tokens == 5 and t.prompt_len == len(answer.prompt_token_ids) for t in tokens))
            self.assertEqual([t.logprob for t in tokens], [0.0] * 5)  # a greedy choice is certain
            self.assertEqual(tokens[0].top_logprob_ids, [tokens[0].token_id])
            self.assertEqual(len(tokens[0].prompt_logprobs), tokens[0].prompt_len)
            self.assertIsNone(tokens[1].prompt_logprobs)
            self.assertEqual(tokens[0].sum_smaller_probs, -1)
            self.assertIn(tokens[0].num_verified_drafts, (1, None))  # None where other requests of this LLM guessed
            self.assertEqual(tokens.answer, answer)
        self.assertEqual(len({t[0].request_id for t in outputs}), len(PROMPTS))

    def test_guesses_change_no_token(self):  # E6, E12
        parameters = [greedy(24), SamplingParams(max_tokens=24, seq_seed=5, ignore_eos=True),
                      greedy(6, golden_token_ids=[-1, 77, 78, -1]), greedy(12, repetition_penalty=1.2)]
        with LLM(MODEL, drafts=0, threads=2) as without:
            expected = without.generate(PROMPTS[:4], parameters)
            self.assertEqual(without.draft_stats(), {"made": 0, "checked": 0, "right": 0})
            self.assertEqual(
                without.generate(PROMPTS[0], greedy(2), decode_sequence=False)[0][1].num_verified_drafts, 1)
        with LLM(MODEL, drafts=5, draft_confidence=False, threads=2) as always:
            self.assertEqual(always.generate(PROMPTS[:4], parameters), expected)
            stats = always.draft_stats()
            # What is not known of a token is not made up.
            self.assertIsNone(always.generate(PROMPTS[0], greedy(2), decode_sequence=False)[0][1].num_verified_drafts)
        self.assertGreater(stats["checked"], 0)
        self.assertGreaterEqual(stats["checked"], stats["right"])

    def test_seeds(self):  # E12, Y5
        p = SamplingParams(max_tokens=16, seq_seed=11)
        together = self.llm.generate(PROMPTS, p)
        self.assertEqual(together, [self.llm.generate([x], p)[0] for x in PROMPTS])
        self.assertNotEqual(together, self.llm.generate(PROMPTS, SamplingParams(max_tokens=16, seq_seed=12)))
        self.assertEqual(len(set(self.llm.generate([PROMPTS[0]] * 8, p))), 1)
        self.assertGreater(len(set(self.llm.generate([PROMPTS[0]] * 8, SamplingParams(max_tokens=16)))), 4)
        self.assertEqual(self.llm.generate(PROMPTS[0], SamplingParams(max_tokens=4, seq_seed=(1 << 64) - 1)),
                         self.llm.generate(PROMPTS[0], SamplingParams(max_tokens=4, seq_seed=np.uint64((1 << 64) - 1))))

    def test_lengths_and_ends(self):  # T4
        by_default = self.llm.generate(PROMPTS[0], SamplingParams(temperature=0))[0]
        self.assertEqual(len(by_default.token_ids), 16)
        self.assertEqual(len(self.llm.generate(PROMPTS[0], greedy(0))[0].token_ids), 1)
        end = self.llm.get_tokenizer().eos_token_id
        forced = [5, 6, end, 7]
        a = self.llm.generate(PROMPTS[0], greedy(8, golden_token_ids=forced))[0]
        self.assertEqual((a.token_ids.tolist(), a.finish_reason), (forced[:3], "stop"))
        a = self.llm.generate(PROMPTS[0], greedy(4, golden_token_ids=forced, ignore_eos=True))[0]
        self.assertEqual((a.token_ids.tolist(), a.finish_reason), (forced, "length"))
        only_end = greedy(3, allowed_token_ids=[end, 9])
        self.assertEqual(self.llm.generate(PROMPTS[0], greedy(3, allowed_token_ids=[end]))[0].token_ids.tolist(), [end])
        only_end.first_n_token_no_eos = 1
        self.assertEqual(self.llm.generate(PROMPTS[0], only_end)[0].token_ids[0], 9)

    def test_golden_tokens(self):  # E22
        free = self.llm.generate(PROMPTS[3], greedy(6))[0].token_ids.tolist()
        golden = [free[0], -1, 77, -1]
        a = self.llm.generate(PROMPTS[3], greedy(6, golden_token_ids=golden, raw_logprobs=True, logprobs=True))[0]
        self.assertEqual(a.token_ids[[0, 1, 2]].tolist(), [free[0], free[1], 77])
        self.assertEqual(len(a.logprobs), 6)

    def test_structured_output(self):  # E13, G1 to G3
        schema = {
            "type": "object", "properties": {
                "name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "minimum": 1, "maximum": 99}},
            "required": ["name", "age"]}
        p = SamplingParams(max_tokens=120, seq_seed=2, so_args={"schema_type": "json", "schema": json.dumps(schema)})
        for a in self.llm.generate(PROMPTS, p):
            self.assertEqual(a.finish_reason, "stop", a)
            self.assertEqual(set(json.loads(a)), {"name", "age"})  # strict: no other members
        regex = {"schema_type": "regex", "schema": r"\d{3}-(cat|dog)"}
        for a in self.llm.generate(PROMPTS, SamplingParams(max_tokens=40, so_args=regex)):
            self.assertRegex(a, r"\A[0-9]{3}-(cat|dog)\Z")
        ebnf = {"schema_type": "ebnf", "schema": 'root ::= "yes" | "no, " ("never" | "thanks")'}
        for a in self.llm.generate(PROMPTS, SamplingParams(max_tokens=40, so_args=ebnf)):
            self.assertIn(a, ("yes", "no, never", "no, thanks"))
        tokenizer = self.llm.get_tokenizer()
        trigger, bound = tokenizer.encode("=>")[1:], tokenizer.encode(" so")[1:]
        self.assertEqual(len(bound), 1)
        p = greedy(30, so_args={**regex, "trigger_token_ids": trigger, "bound_token_id": bound[0]},
                   golden_token_ids=tokenizer.encode("Well, so")[1:])
        self.assertRegex(self.llm.generate(PROMPTS[0], p)[0], r"\AWell, so=>[0-9]{3}-(cat|dog)\Z")

    def test_results_line_up_with_prompts(self):  # Y4
        prompts = ["Once", "", [1 << 40], [0, -5], [], list(range(5, 600)), np.array([0, 5, 6]), [0, 5, 6]]
        out = self.llm.generate(prompts, greedy(3))
        self.assertEqual([a.error is None for a in out], [True, False, False, False, False, False, True, True])
        self.assertEqual(out[6], out[7])
        self.assertEqual(out[5].finish_reason, "prompt_length_exceeded")
        for a in out[1:6]:
            self.assertEqual((a, len(a.token_ids)), ("", 0))
            self.assertTrue(a.error.endswith("."))
        tokens = self.llm.generate(prompts, greedy(3), decode_sequence=False)
        self.assertEqual([len(t) for t in tokens], [3, 0, 0, 0, 0, 0, 3, 3])
        self.assertEqual(tokens[1].error, out[1].error)
        self.assertEqual(self.llm.generate([], greedy(3)), [])
        self.assertEqual(self.llm.generate(prompt_token_ids=[[0, 5, 6]], sampling_params=greedy(3))[0], out[7])

    def test_more_than_the_first_release_has(self):  # Y6
        a, b, c = self.llm.generate(PROMPTS[0], SamplingParams(n=3, max_tokens=12, seq_seed=4))[0].answers
        self.assertEqual(len({a, b, c}), 3)
        text = self.llm.generate(PROMPTS[0], greedy(24))[0]
        cut = self.llm.generate(PROMPTS[0], greedy(24, stop=[text[8:11], "never said"]))[0]
        self.assertEqual((str(cut), cut.finish_reason, cut.stop_text),
                         (text[:text.index(text[8:11])], "stop_text", text[8:11]))
        each = self.llm.generate(PROMPTS[:2], [greedy(2), greedy(5)])
        self.assertEqual([len(x.token_ids) for x in each], [2, 5])
        banned = int(text.token_ids[0])
        self.assertNotEqual(int(self.llm.generate(PROMPTS[0], greedy(1, logit_bias={banned: -100}))[0].token_ids[0]),
                            banned)

    def test_chat(self):
        messages = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Tell me a short story."}]
        a = self.llm.chat(messages, greedy(40), thinking=False)[0]
        self.assertIsInstance(a, Answer)
        self.assertTrue(a)
        self.assertEqual(a.reasoning, "")
        thoughtful, again = self.llm.chat([messages, messages], greedy(60))
        self.assertTrue(thoughtful.reasoning)
        self.assertEqual((thoughtful, thoughtful.reasoning), (again, again.reasoning))
        with self.assertRaisesRegex(ValueError, "role"):
            self.llm.chat([{"role": "nobody", "content": "x"}], greedy(2))

    def test_refusals_name_the_parameter(self):
        bad = {
            "temperature": [-1, float("nan"), "hot", True], "top_p": [0, 1.1, None.__class__], "top_k": [0, -2, 1.5],
            "max_tokens": [-1, "x"], "top_logprobs": [-1, 1001], "golden_token_ids": [[1 << 30], "ab", 5],
            "seq_seed": [-1, 1 << 64, 1.5], "stop": [5, [5], "", "\ud800"], "first_n_token_no_eos": [-1],
            "logit_bias": [{5: 1e9}, {-1: 1}, [5]], "min_p": [2], "repetition_penalty": [0], "n": [0, 1000],
            "priority": [9], "ignore_eos": [1], "allowed_token_ids": [[-1], []]}
        for name, values in bad.items():
            for value in values:
                with self.assertRaisesRegex(ValueError, name, msg=f"{name}={value!r}"):
                    self.llm.generate("x", SamplingParams(**{name: value}))
        for so_args in ({"schema_type": "xml", "schema": "a"}, {"schema_type": "regex", "schema": "("},
                        {"schema_type": "json", "schema": "{"},
                        {"schema_type": "regex", "schema": "a", "bound_token_id": 3},
                        {"schema_type": "ebnf", "schema": "x"}, "a"):
            with self.assertRaises(ValueError, msg=str(so_args)):
                self.llm.generate("x", SamplingParams(so_args=so_args))
        with self.assertRaises(AttributeError):
            SamplingParams().temprature = 1
        with self.assertRaises(TypeError):
            SamplingParams(temprature=1)
        with self.assertRaisesRegex(ValueError, "3 sets"):
            self.llm.generate(["a", "b"], [greedy()] * 3)
        for call in (lambda: self.llm.generate(), lambda: self.llm.generate("x", prompt_token_ids=[[1]]),
                     lambda: self.llm.generate([b"x"]), lambda: self.llm.generate(["x", 5]),
                     lambda: self.llm.generate([np.array(5)]), lambda: self.llm.generate([np.array([[1, 2]])]),
                     lambda: self.llm.generate([np.array([1.5])]),
                     lambda: self.llm.generate("x", SamplingParams(seq_seed=np.array([1, 2]))),
                     lambda: self.llm.generate("x", multi_modal_data={})):
            with self.assertRaises(ValueError):
                call()
        self.assertTrue(self.llm.generate("Once", greedy(2))[0])  # still there

    def test_other_python_threads_run_meanwhile(self):
        ticks, done = [], threading.Event()

        def tick():
            while not done.wait(0.002):
                ticks.append(time.monotonic())

        thread = threading.Thread(target=tick)
        thread.start()
        most = 0  # ticks within one call; a thread that has to wait for calls to end ticks between them
        for _ in range(100):
            before = len(ticks)
            self.llm.generate(PROMPTS * 4, greedy(24))
            most = max(most, len(ticks) - before)
            if most > 4:
                break
        done.set()
        thread.join()
        self.assertGreater(most, 4)

    def test_two_threads_generate_at_once(self):
        want = self.llm.generate(PROMPTS, greedy(10))
        got = {}
        threads = [
            threading.Thread(target=lambda i=i: got.__setitem__(i, self.llm.generate(PROMPTS, greedy(10))))
            for i in range(3)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertEqual(list(got.values()), [want] * 3)

    def test_interrupt(self):
        with self.assertRaises(KeyboardInterrupt):
            threading.Timer(0.4, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
            self.llm.generate(PROMPTS * 1000, greedy(400, ignore_eos=True))  # minutes, if nothing ended it
        self.assertTrue(self.llm.generate("Once", greedy(2))[0])


class OpenTest(unittest.TestCase):
    def test_refusals(self):
        for more in ({"model": "/no/such/model"}, {"load_format": "other"}, {"expert_parallel_size": 2},
                     {"data_parallel_size": 4}, {"engine_type": "PROMPT"}, {"tokens_per_block": 64},
                     {"max_model_len": 1}, {"threads": 0}, {"backend": "fast5"}, {"max_model_len": 64, "context": 64},
                     {"gpu_memory_utilization": 0}, {"seed": -1}, {"tokenizer": "/no/such"}, {"revision": "main"},
                     {"config": "/no/such.toml"}, {"host_experts": -1}, {"host_experts": 4097}, {"ram": "much"},
                     {"draft_history": "maybe"}):
            with self.assertRaises(ValueError, msg=str(more)):
                LLM(**{"model": MODEL, **more})
        with self.assertRaisesRegex(TypeError, "max_num_seq"):
            LLM(MODEL, max_num_seq=4)

    def test_every_option_of_the_documentation_is_an_argument(self):  # T2
        named = re.findall(r"^\| `--[^|]*\| `(\w+)` \|[^|]*\|[^|]*\|[^|]*\bpython\b[^|]*\|",
                           (ROOT / "docs/configuration.md").read_text(), re.M)
        self.assertGreater(len(named), 20)
        with self.assertRaises(TypeError) as refused:
            LLM(MODEL, no_such_option=1)
        known = re.findall(r"\w+", str(refused.exception))
        self.assertEqual([n for n in named if n not in known and n != "model"], [])
        with LLM(MODEL, max_model_len=128, max_num_seqs=2, threads=1, pin_threads=True, host_experts=4, ram="4GiB",
                 draft_history=False) as llm:
            self.assertTrue(llm.generate("Once", greedy(2))[0])

    def test_dummy_weights_decode_sequence_and_close(self):
        with LLM(MODEL, load_format="dummy", max_model_len=128, max_num_seqs=2, decode_sequence=False,
                 chunked_prefill=True) as llm:
            tokens = llm.generate(["Once upon a time"], greedy(4, ignore_eos=True))[0]
            self.assertEqual(len(tokens), 4)
        with self.assertRaisesRegex(ValueError, "closed"):
            llm.generate("x")

    def run_python(self, code, **env):
        code = f"from deepinfer import LLM, SamplingParams as P\nm = {MODEL!r}\n{code}"
        return subprocess.run([sys.executable, "-c", code], text=True,
                              env={**os.environ, **env}, capture_output=True, timeout=240)

    def test_environment(self):  # T1, Y13
        show = ("l = LLM(m, max_model_len=256, **{more}); print([a.token_ids.tolist() for a in l.generate(['Once upon "
                "a time'], P(temperature=0, max_tokens=6))])")
        plain = self.run_python(show.format(more={}))
        ids = json.loads(plain.stdout)[0]
        banned = self.run_python(show.format(more={}), DEEPINFER_DECODE_TOKEN_BLACKLIST=f"0..2,{ids[0]}")
        self.assertNotIn(ids[0], json.loads(banned.stdout)[0])
        again = self.run_python(show.format(more={"ban_tokens": "0..2"}),
                                DEEPINFER_DECODE_TOKEN_BLACKLIST=f"0..2,{ids[0]}")
        self.assertEqual(again.stdout, plain.stdout)  # an argument goes before the environment
        for env, words in (({"DEEPINFER_THREDS": "1"}, "DEEPINFER_THREADS"),
                           ({"DEEPINFER_FORCE_LOAD_BALANCE": "1"}, "not possible"),
                           ({"DEEPINFER_TOP_K_MAX": "1", "DEEPINFER_SAMPLER_FORCE_TOPK": "2"}, "contradict")):
            result = self.run_python(show.format(more={}), **env)
            self.assertRegex(result.stderr, f"ValueError: .*{words}")
        self.assertIn("NCCL_NUM_SMS has no effect",
                      self.run_python(show.format(more={}), DEEPINFER_NCCL_NUM_SMS="8").stderr)

    def test_examples(self):
        for example in sorted((ROOT / "examples").glob("*.py")):
            result = subprocess.run([sys.executable, str(example)], capture_output=True, text=True, timeout=240,
                                    cwd=ROOT, env={**os.environ, "DEEPINFER_HF_MODEL_DIR": MODEL})
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertGreater(len(result.stdout), 50, example)


if __name__ == "__main__":
    warnings.simplefilter("error")
    unittest.main(verbosity=1)
