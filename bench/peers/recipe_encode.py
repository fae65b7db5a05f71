"""deepseek-recipe as a peer of bench_recipe: reads one job a line, answers each with the times of its rounds,
of the wall clock and of the CPU.

A job is {"request": FILE with a Chat Completions body, "tokenizer": tokenizer.json, "rounds": N}. A round is what a
server does with the bytes of a request: parse, convert, render, tokenize. The ids come back once. Ends with its
standard input.
"""
import json
import sys
import time

from deepseek_recipe import ChatCompletionRequest, ConversionOptions, DeepseekV41Encoding, Tokenizer

encodings = {}


def run(job):
    if job["tokenizer"] not in encodings:
        encodings[job["tokenizer"]] = DeepseekV41Encoding().with_tokenizer(Tokenizer.from_file(job["tokenizer"]))
    encoding = encodings[job["tokenizer"]]
    with open(job["request"], "rb") as f:
        body = f.read()
    options = ConversionOptions()
    seconds, cpu, ids = [], [], []
    for _ in range(job["rounds"]):
        begin, cpu_begin = time.perf_counter(), time.process_time()
        ids = encoding.encode(ChatCompletionRequest(body).convert(options).conversation)
        seconds.append(time.perf_counter() - begin)
        cpu.append(time.process_time() - cpu_begin)
    return {"seconds": seconds, "cpu": cpu, "ids": ids}


for line in sys.stdin:
    print(json.dumps(run(json.loads(line))), flush=True)
