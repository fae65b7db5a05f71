#!/usr/bin/env python3
"""differential.py HELPER [--megabytes N] [--seed S] TOKENIZER.JSON...

Compares our tokenizer (HELPER is the program encode_chunks) with Hugging Face tokenizers 0.23.3 on seeded mixed text:
ids and offsets of every chunk must be equal, with added tokens recognised and without. Exit code 77 (skipped) when the
package cannot be had; tokenizer files that are absent are skipped with a note."""
import argparse
import array
import json
import os
import pathlib
import random
import struct
import subprocess
import sys
import sysconfig

ROOT = pathlib.Path(__file__).resolve().parents[3]
SKIPPED = 77
CHUNK = 4000


def need_tokenizers():
    """Imports the peer, re-running in a virtual environment (tools/test_venv.sh) if this Python lacks it."""
    try:
        import tokenizers
        return tokenizers
    except ImportError:
        pass
    if "DEEPINFER_IN_VENV" not in os.environ:
        made = subprocess.run([ROOT / "tools/test_venv.sh", "build/test-data/tokenizers-venv", "tokenizers==0.23.3"],
                              stdout=subprocess.PIPE, text=True)
        if made.returncode == 0:
            python = made.stdout.strip()
            os.execve(python, [python, *sys.argv], {**os.environ, "DEEPINFER_IN_VENV": "1"})
    print("SKIP: Hugging Face tokenizers cannot be had here")
    sys.exit(SKIPPED)


def prose_and_code(rng, size):
    """Files that lie on every machine that runs this: the repository's own and Python's library."""
    files = sorted(ROOT.glob("docs/**/*.md")) + sorted(ROOT.glob("src/**/*.[ch]*")) + sorted(ROOT.glob("*.md"))
    files += sorted(pathlib.Path("/usr/share/common-licenses").glob("*"))
    files += sorted(pathlib.Path(sysconfig.get_paths()["stdlib"]).rglob("*.py"))
    rng.shuffle(files)
    left = size
    for file in files:
        try:
            text = file.read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        for at in range(0, min(len(text), 200_000), CHUNK):
            yield text[at:at + CHUNK]
            left -= CHUNK
        if left <= 0:
            return


class Maker:
    """Chunks of synthetic text; every method returns about `n` characters."""

    def __init__(self, rng, vocab):
        self.rng = rng
        self.tokens = vocab
        self.cjk_tokens = [t for t in vocab if t and all("\u4e00" <= c <= "\u9fa5" for c in t)] or ["的", "中文"]
        self.kinds = [
            "a", "Z", "é", "е", "\u0301", "\u20dd", "1", "٣", "Ⅳ", "½", "(", "¿", "—", "$", "€", "☃", "\u309b", "・",
            "ー", "゠", "\u3040", "あ", "字", "\u9fa6", "\u3005", " ", "  ", "\t", "\n", "\r", "\r\n", "\u00a0", "\u3000",
            "\u2028", "\u0085", "\x0b", "\x00", "\x1f", "\u200b", "\u200d", "\ufeff", "\ue000", "\U000e0001",
            "\U0010ffff", "😀", "𝔘", "𠀀"]

    def chinese(self, n):
        out = []
        while sum(map(len, out)) < n:
            out += [self.rng.choice(self.cjk_tokens) for _ in range(self.rng.randint(1, 9))]
            out.append(self.rng.choice("，。！？；：、“”（）\n 1") if self.rng.random() < 0.9 else "ＡＢＣ abc 100%")
        return "".join(out)

    def emoji(self, n):
        pick = lambda: chr(
            self.rng.choice([
                self.rng.randint(0x1f300, 0x1faff),
                self.rng.randint(0x2600, 0x27bf),
                self.rng.randint(0x1f1e6, 0x1f1ff)]))
        return "".join(pick() + self.rng.choice(["", "\ufe0f", "\u200d", "\U0001f3fd", " ", "ok "]) for _ in range(n))

    def code_points(self, n):
        def one():
            c = self.rng.choice([0x80, 0x3000, 0x10000, 0x20000, 0x110000])
            c = self.rng.randrange(c)
            return chr(c) if not 0xd800 <= c < 0xe000 else " "
        return "".join(one() for _ in range(n))

    def kind_mix(self, n):
        few = self.rng.sample(self.kinds, self.rng.randint(2, 12))
        return "".join(self.rng.choice(few) for _ in range(n))

    def token_mix(self, n):
        return "".join(self.rng.choice(self.tokens) for _ in range(n // 4))

    def letters(self, n):
        alphabet = self.rng.choice(["ab", "a", "etaoin", "abcdefghijklmnopqrstuvwxyz", "ABCdef", "=-", " ", "的一", "01"])
        return "".join(self.rng.choice(alphabet) for _ in range(self.rng.randint(1, n)))


def code_points_in_context(rng, step):
    points = [c for c in range(rng.randrange(step), 0x110000, step) if not 0xd800 <= c < 0xe000]
    for at in range(0, len(points), 500):
        yield "".join(
            rng.choice(["a{0}b", " {0}", "{0}{0}x", "\n{0}", ".{0}", "7{0}字", "  {0}a", "({0}"]).format(chr(c))
            for c in points[at:at + 500])


def broken(rng, text):
    data = bytearray(text.encode())
    for _ in range(max(1, len(data) // 50)):
        at = rng.randrange(len(data)) if data else 0
        data[at:at + rng.randint(0, 2)] = rng.randbytes(rng.randint(0, 3))
    return bytes(data)


def chunks(seed, megabytes, vocab, added):
    """Pairs (recognise added tokens, bytes)."""
    rng = random.Random(seed)
    maker = Maker(rng, vocab)
    total = megabytes * 1_000_000
    makers = [maker.chinese, maker.emoji, maker.code_points, maker.kind_mix, maker.token_mix, maker.letters]

    def synthetic(size):
        while size > 0:
            text = rng.choice(makers)(rng.choice([3, 10, 100, CHUNK // 2]))
            form = rng.random()
            if form < 0.1:
                data = rng.randbytes(rng.randint(1, 500))
            elif form < 0.3:
                data = broken(rng, text)
            elif form < 0.5:
                data = text[rng.randint(0, 20):len(text) - rng.randint(0, 20)].encode()
            elif form < 0.65:
                cut = rng.randint(0, len(text))
                data = (text[:cut] + rng.choice(added) +
                        rng.choice(["", " ", "\n", rng.choice(added)[:-1]]) + text[cut:]).encode()
            else:
                data = text.encode()
            size -= len(data)
            yield data

    for text in code_points_in_context(rng, 1 if megabytes >= 10 else 16):
        yield False, text.encode()
    for text in prose_and_code(rng, total // 2):
        data = text.encode()
        yield rng.random() < 0.3, broken(rng, text) if rng.random() < 0.1 else data
    for data in synthetic(total // 2):
        yield rng.random() < 0.5, data


def read_tokens(stream):
    count, = struct.unpack("<I", stream.read(4))
    values = array.array("I", stream.read(12 * count))
    return list(values[:count]), list(zip(values[count:2 * count], values[2 * count:]))


def compare(tokenizers, helper, path, seed, megabytes):
    document = json.loads(path.read_text(encoding="utf-8"))
    added = [t["content"] for t in document["added_tokens"]]
    with_added = tokenizers.Tokenizer.from_str(json.dumps(document))
    plain = tokenizers.Tokenizer.from_str(json.dumps({**document, "added_tokens": []}))
    vocab = [plain.decode([i]) for i in range(plain.get_vocab_size())]
    vocab = [t for t in vocab if t and "\ufffd" not in t]
    process = subprocess.Popen([helper, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    done = chunk_count = 0
    batch = []

    def flush():
        for recognise, peer in ((True, with_added), (False, plain)):
            items = [data for r, data in batch if r == recognise]
            expected = peer.encode_batch([data.decode("utf-8", "replace") for data in items], add_special_tokens=False)
            for data, want in zip(items, expected):
                process.stdin.write(struct.pack("<II", recognise, len(data)) + data)
                process.stdin.flush()
                ids, offsets = read_tokens(process.stdout)
                if ids != want.ids or offsets != want.offsets:
                    at = next(
                        (i for i, (a, b) in enumerate(zip(zip(ids, offsets), zip(want.ids, want.offsets))) if a != b),
                        min(len(ids), len(want.ids)))
                    text = data.decode("utf-8", "replace")
                    where = want.offsets[at][0] if at < len(want.offsets) else len(text)
                    print(f"FAIL {path} seed {seed}: token {at} near {text[max(0, where - 20):where + 20]!r}, added "
                          f"tokens recognised: {recognise}")
                    print(
                        f"  expected {list(zip(want.ids, want.offsets))[at:at + 6]}\n  got      "
                        f"{list(zip(ids, offsets))[at:at + 6]}"
                    )
                    sys.exit(1)
        batch.clear()

    for recognise, data in chunks(seed, megabytes, vocab, added):
        batch.append((recognise, data))
        done += len(data)
        chunk_count += 1
        if len(batch) == 256:
            flush()
    flush()
    process.stdin.close()
    if process.wait() != 0:
        sys.exit(1)
    print(f"{path}: ids and offsets of {chunk_count} chunks, {done / 1e6:.1f} MB, equal to Hugging Face tokenizers "
          f"{tokenizers.__version__}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("helper")
    parser.add_argument("files", nargs="+")
    parser.add_argument("--megabytes", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    tokenizers = need_tokenizers()
    compared = 0
    for file in map(pathlib.Path, args.files):
        if not file.exists():
            print(f"SKIP {file}: absent (tools/fetch_test_tokenizer.sh)")
            continue
        compare(tokenizers, args.helper, file, args.seed, args.megabytes)
        compared += 1
    sys.exit(0 if compared else SKIPPED)


main()
