"""Peers of bench_grammar: compiles a case and fills a mask before each token of its texts, with llguidance or xgrammar.

One JSON object a line in: {"engine", "tokenizer", "end", "case": a case of structured/README.md, "texts": [[token ids],
...]}; one out: {"status": "ok" | "refused", "compile_us", "mask_us": [...], "accepted": [...], "overhead_us"}. Times
are CPU time of the thread; what a call through the binding costs by itself is measured at the start and returned, not
yet subtracted.
"""
import json
import statistics
import sys
import time

import numpy as np

clock = time.thread_time_ns


def call_overhead_us(call):
    times = []
    for _ in range(2000):
        begin = clock()
        call()
        times.append((clock() - begin) / 1e3)
    return statistics.median(times)


class LlGuidance:
    def __init__(self, path, end):
        import llguidance
        import llguidance.gbnf_to_lark
        import llguidance.numpy as masks

        self.lib, self.masks = llguidance, masks
        self.tokenizer = llguidance.LLTokenizer(path, eos_token=end)
        self.mask = masks.allocate_token_bitmask(1, self.tokenizer.vocab_size)
        matcher = llguidance.LLMatcher(self.tokenizer, llguidance.LLMatcher.grammar_from_regex("a"))
        self.overhead_us = call_overhead_us(matcher.is_accepting)

    def compile(self, case):
        m = self.lib.LLMatcher
        if case["kind"] == "json_schema":
            grammar = m.grammar_from_json_schema(json.dumps(case["schema"]))
        elif case["kind"] == "regex":
            grammar = m.grammar_from_regex(case["regex"])
        elif case["kind"] == "gbnf":
            grammar = m.grammar_from_lark(self.lib.gbnf_to_lark.any_to_lark(case["grammar"]))
        else:
            return None
        matcher = m(self.tokenizer, grammar)
        return None if matcher.is_error() else matcher

    def matcher(self, compiled):
        return compiled.deep_copy()

    def fill(self, matcher):
        self.masks.fill_next_token_bitmask(matcher, self.mask, 0)

    def accept(self, matcher, token):
        return matcher.consume_token(token) and not matcher.is_error()


class XGrammar:
    def __init__(self, path, end):
        import tokenizers
        import xgrammar

        self.lib = xgrammar
        hf = tokenizers.Tokenizer.from_file(path)
        size = hf.get_vocab_size(with_added_tokens=True)
        vocabulary = [hf.id_to_token(i) or "" for i in range(size)]
        info = xgrammar.TokenizerInfo(vocabulary, xgrammar.VocabType.BYTE_LEVEL, vocab_size=size, stop_token_ids=[end])
        self.compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)
        self.mask = xgrammar.allocate_token_bitmask(1, size)
        matcher = xgrammar.GrammarMatcher(self.compiler.compile_regex("a"))
        self.overhead_us = call_overhead_us(matcher.is_terminated)

    def compile(self, case):
        if case["kind"] == "json_schema":
            return self.compiler.compile_json_schema(json.dumps(case["schema"]), strict_mode=False)
        if case["kind"] == "regex":
            return self.compiler.compile_regex(case["regex"])
        if case["kind"] == "gbnf":
            return self.compiler.compile_grammar(case["grammar"])
        return None

    def matcher(self, compiled):
        return self.lib.GrammarMatcher(compiled)

    def fill(self, matcher):
        matcher.fill_next_token_bitmask(self.mask)

    def accept(self, matcher, token):
        return matcher.accept_token(token)


def run(engine, case, texts):
    begin = clock()
    try:
        compiled = engine.compile(case)
    except Exception:  # how both report what they do not take
        compiled = None
    compile_us = (clock() - begin) / 1e3
    out = {
        "status": "refused", "overhead_us": engine.overhead_us, "compile_us": compile_us, "mask_us": [], "accepted": []}
    if compiled is None:
        return out
    out["status"] = "ok"
    mask = engine.mask
    for tokens in texts:
        matcher = engine.matcher(compiled)
        fits = True
        for token in [*tokens, None]:
            begin = clock()
            engine.fill(matcher)
            out["mask_us"].append((clock() - begin) / 1e3)
            if token is None:
                break
            row = np.asarray(mask).reshape(-1)
            if not (int(row[token >> 5]) >> (token & 31)) & 1 or not engine.accept(matcher, token):
                fits = False
                break
        out["accepted"].append(fits)
    return out


def main():
    engines = {}
    for line in sys.stdin:
        job = json.loads(line)
        key = (job["engine"], job["tokenizer"])
        if key not in engines:
            engines[key] = (LlGuidance if job["engine"] == "llguidance" else XGrammar)(job["tokenizer"], job["end"])
        print(json.dumps(run(engines[key], job["case"], job["texts"])), flush=True)


main()
