#!/usr/bin/env python3
"""KV blocks that left the GPU's memory come back from host memory and SSD, and the answers are those without a cache:

    tests/cuda/kv_tiers.py [--device cuda] [--model FOLDER ...] [BUILD_FOLDER]

The GPU holds one prompt at a time; the first one comes again at the end.
"""
import argparse
import pathlib
import random
import sys
import tempfile

parser = argparse.ArgumentParser()
parser.add_argument("build", nargs="?", default="build/cuda")
parser.add_argument("--device", default="cuda")
parser.add_argument("--model", action="append")
arguments = parser.parse_args()
root = pathlib.Path(__file__).resolve().parents[2]
sys.argv[1:] = [str((root / arguments.build / "src/app/deepinfer").resolve())]
sys.path.insert(0, str(root / "tests/e2e"))
from server import Server  # noqa: E402  (it takes the program from sys.argv)

PROMPTS, WORDS, CONTEXT, TOKENS = 4, 1700, 2048, 24
NOUNS = "river house stone tree bird letter window garden winter road song child".split()


def answers(model, prompts, *more):
    """Text and log-probabilities of each answer; tokens of each prompt, and how many of them were cached."""
    got, lengths, cached = [], [], []
    flags = ("--device", arguments.device, "--sequences", "1", "--context", str(CONTEXT), *more)
    with Server(*flags, model=model) as server:
        for prompt in prompts:
            request = {"model": "deepseek-v4.1-flash", "prompt": prompt, "max_tokens": TOKENS}
            status, body = server.post("/v1/completions", {**request, "temperature": 0, "logprobs": 1})
            if status != 200:
                sys.exit(f"FAILED: {status} {body}\n{server.output()}")
            got.append(body["choices"][0])
            lengths.append(body["usage"]["prompt_tokens"])
            cached.append(body["usage"]["prompt_tokens_details"]["cached_tokens"])
    return got, lengths, cached


failed = 0
for model in arguments.model or [root / "models/tiny"]:
    draw = random.Random(5)
    prompts = [" ".join(draw.choice(NOUNS) for _ in range(WORDS)) for _ in range(PROMPTS)]
    prompts.append(prompts[0])
    cold, lengths, _ = answers(model, prompts, "--no-cache")
    with tempfile.TemporaryDirectory() as ssd:
        for name, flags, back in (("device alone", (), False), ("host memory", ("--kv-host-mb", "256"), True),
                                  ("SSD", ("--kv-ssd", ssd, "--kv-ssd-gb", "1"), True)):
            got, _, cached = answers(model, prompts, *flags)
            equal, right = got == cold, (cached[-1] >= lengths[-1] // 2) == back and not any(cached[:PROMPTS])
            failed += not (equal and right)
            print(f"{'ok' if equal and right else 'FAILED'}: {pathlib.Path(model).name}, {name}: {cached[-1]} of "
                  f"{lengths[-1]} tokens of the prompt that comes again were cached; answers "
                  f"{'equal' if equal else 'DIFFER from'} those without a cache", flush=True)
sys.exit(failed > 0)
