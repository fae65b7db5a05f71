"""The program under test: the first argument of the test script, else the release build's."""
import os
import pathlib
import sys

PROGRAM = os.path.abspath(sys.argv.pop(1) if len(sys.argv) > 1 else "build/release/src/app/deepinfer")
# Built with sanitizers: tens of times slower, and it reserves terabytes of address space.
SANITIZED = any(mark in pathlib.Path(PROGRAM).read_bytes() for mark in (b"__asan_init", b"__tsan_init"))
