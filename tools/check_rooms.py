#!/usr/bin/env python3
"""Checks that rooms include only what docs/architecture.md allows: a room may use itself and rooms below it.

    tools/check_rooms.py [SRC]      prints each wrong include and exits 1 if there is one
"""
import pathlib
import re
import sys

# Lowest first. A room may include rooms that stand before it, minus the exceptions below.
ORDER = [
    "base", "observe", "numeric", "text", "recipe", "grammar", "checkpoint", "ops", "parallel", "model", "kv", "sched",
    "engine", "cluster", "tenancy", "serve", "simulate", "app"]
FORBIDDEN = {
    "kv": {"model", "ops", "checkpoint", "numeric", "text", "recipe",
           "grammar"},  # kvstore and the simulator link kv alone
    "grammar": {"recipe"},
    "tenancy": {"engine", "model", "ops"},
    "simulate": {"model", "ops", "engine", "serve"}, }
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.M)


def problems(src):
    for path in sorted(src.rglob("*")):
        if path.suffix not in (".h", ".cc", ".cu", ".cuh", ".inc"):
            continue
        room = path.relative_to(src).parts[0]
        if room not in ORDER:
            yield f"{path}: '{room}' is not a room"
            continue
        for name in INCLUDE.findall(path.read_text(encoding="utf-8")):
            target = name.split("/")[0]
            if "/" not in name or not (src / name).exists():
                yield f"{path}: include \"{name}\" from src/, as \"room/file.h\""
            elif target != room and (ORDER.index(target) > ORDER.index(room) or target in FORBIDDEN.get(room, ())):
                yield f"{path}: {room} may not include {name}"


def main():
    src = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent.parent / "src")
    found = list(problems(src))
    print("\n".join(found) if found else "rooms: all includes point downwards")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
