#!/usr/bin/env python3
"""Builds and runs bench_* programs and shows their JSON lines (see bench.sh). Never judges a time as an error:
a miss is shown as a miss; only a broken benchmark (crash, bad line, ratio above 1.05 of a physical ceiling) fails."""
import argparse
import json
import pathlib
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
FIELDS = ["bench", "case", "value", "unit", "ceiling", "ceiling_is", "ratio", "goal", "met", "machine"]


def names():
    return sorted(p.stem for p in (ROOT / "bench").glob("*.cmake"))


def preset(name):
    """The build preset of a benchmark: those of a GPU say so in their .cmake file."""
    return "cuda" if "DEEPINFER_CUDA" in (ROOT / f"bench/{name}.cmake").read_text() else "release"


def run_one(name, quick):
    """Returns (results, error): the parsed lines of one program and what is wrong with it, if anything."""
    command = [ROOT / f"build/{preset(name)}/bench/bench_{name}"] + (["--quick"] if quick else [])
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    results = []
    for line in done.stdout.splitlines():
        if not line.startswith("{"):
            continue
        try:
            row = json.loads(line)
        except ValueError as e:
            return results, f"bench {name}: a line is not JSON ({e}): {line[:200]}"
        lacking = [f for f in FIELDS if f not in row]
        if lacking:
            return results, f"bench {name}: a line lacks {', '.join(lacking)}: {line[:200]}"
        results.append(row)
    if done.returncode:
        return results, f"bench {name}: exit code {done.returncode}"
    return results, None


def main():
    ap = argparse.ArgumentParser(prog="bench.sh")
    ap.add_argument("name", nargs="*")
    ap.add_argument("--quick", action="store_true", help="a short run, to see that it works")
    ap.add_argument("--json", action="store_true", help="print the JSON lines only")
    args = ap.parse_args()
    known = names()
    for n in args.name:
        if n not in known:
            sys.exit(f"bench.sh: there is no benchmark '{n}'; there are: {' '.join(known)}")
    chosen = args.name or known
    if not shutil.which("nvcc"):
        for n in [n for n in chosen if preset(n) == "cuda"]:
            print(f"bench.sh: {n} is left out: there is no nvcc here to build it", file=sys.stderr)
            chosen = [m for m in chosen if m != n]
    if not chosen:
        print("no benchmarks yet")
        return
    for p in sorted({preset(n) for n in chosen}):
        build = subprocess.run([ROOT / "tools/build.sh", p] + [f"bench_{n}" for n in chosen if preset(n) == p],
                               capture_output=True, text=True)
        if build.returncode:
            sys.exit(build.stdout + build.stderr)
    cases = json.loads((ROOT / "bench/cases.json").read_text())
    errors, rows = [], []
    for n in chosen:
        results, error = run_one(n, args.quick)
        if error:
            errors.append(error)
        printed = {r["case"] for r in results}
        wanted = {c["case"]: c for c in cases if c["bench"] == n}
        for r in results:
            if r["case"] not in wanted:
                errors.append(f"bench {n}: case '{r['case']}' is not in bench/cases.json")
            if r["ratio"] is not None and r["ratio"] > 1.05 and str(r["ceiling_is"]).startswith("physical"):
                errors.append(
                    f"bench {n}: case '{r['case']}' is {r['ratio']} of its physical ceiling: the benchmark is wrong")
        for case, c in wanted.items():
            if case not in printed:
                results.append(
                    dict(dict.fromkeys(FIELDS), bench=n, case=case, goal=c.get("goal"), unit=c.get("unit"), met=False,
                         machine="missing"))
        rows += results
        if args.json:
            for r in results:
                print(json.dumps(r, ensure_ascii=False), flush=True)
    if not args.json:
        show(rows)
    for e in errors:
        print(e, file=sys.stderr)
    sys.exit(1 if errors else 0)


def show(rows):
    def num(x):
        return "-" if x is None else f"{x:.4g}" if isinstance(x, (int, float)) else str(x)
    table = [["bench", "case", "value", "unit", "ratio", "of", "goal", ""]]
    for r in rows:
        mark = "missing" if r["machine"] == "missing" else "MISS" if r["met"] is False else ""
        table.append([
            r["bench"], r["case"],
            num(r["value"]),
            num(r["unit"]),
            num(r["ratio"]),
            num(r["ceiling_is"]),
            num(r["goal"]), mark])
    widths = [max(len(row[i]) for row in table) for i in range(len(table[0]))]
    for row in table:
        print("  ".join(cell.ljust(w) for cell, w in zip(row, widths)).rstrip())


if __name__ == "__main__":
    main()
