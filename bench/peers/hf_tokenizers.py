"""Hugging Face tokenizers as a peer of bench_tokenizer: reads one job a line, answers each with its CPU seconds.

A job is {"tokenizer": tokenizer.json, "file": TEXT FILE}. The text is encoded whole, on one thread, the tokenizer being
kept from job to job; without its added tokens, since ours does not look for them in plain text either. Ends with its
standard input.
"""
import json
import sys
import time

import tokenizers

loaded = {}
for line in sys.stdin:
    job = json.loads(line)
    if job["tokenizer"] not in loaded:
        with open(job["tokenizer"], encoding="utf-8") as f:
            loaded[job["tokenizer"]] = tokenizers.Tokenizer.from_str(json.dumps({**json.load(f), "added_tokens": []}))
    with open(job["file"], encoding="utf-8", newline="") as f:
        text = f.read()
    begin = time.thread_time()
    count = len(loaded[job["tokenizer"]].encode(text, add_special_tokens=False).ids)
    print(json.dumps({"seconds": time.thread_time() - begin, "tokens": count}), flush=True)
