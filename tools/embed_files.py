#!/usr/bin/env python3
"""Turns a folder of files into a C++ source that holds them (serve/page.h), each also gzipped.

    tools/embed_files.py web/dist build/.../page_files.cc
"""
import gzip
import hashlib
import pathlib
import re
import sys

TYPES = {
    ".html": "text/html; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml", ".png": "image/png", ".ico": "image/x-icon", ".json": "application/json",
    ".woff2": "font/woff2", ".txt": "text/plain; charset=utf-8", ".webmanifest": "application/manifest+json",
    ".map": "application/json"}
MACRO = """#define DI_EMBED(name, path)                                                                          \\
  extern "C" const char name##_begin[];                                                               \\
  extern "C" const char name##_end[];                                                                 \\
  asm(".pushsection .rodata\\n" #name "_begin:\\n.incbin \\"" path "\\"\\n" #name "_end:\\n.byte 0\\n.popsection\\n")

"""


def main():
    root, target = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2])
    target.parent.mkdir(parents=True, exist_ok=True)
    files = sorted(p for p in root.rglob("*") if p.is_file()) if root.is_dir() else []
    externs, rows = [], []
    for i, path in enumerate(files):
        data = path.read_bytes()
        packed = gzip.compress(data, 9, mtime=0)
        names = [f"di_page_{i}"]
        externs.append(f'DI_EMBED({names[0]}, "{path}");')
        if len(packed) < 0.9 * len(data):
            names.append(f"di_page_{i}_gz")
            gz = target.parent / f"{i}.gz"
            gz.write_bytes(packed)
            externs.append(f'DI_EMBED({names[1]}, "{gz}");')
        views = [f"{{{n}_begin, static_cast<size_t>({n}_end - {n}_begin)}}" for n in names] + ["{}"]
        name = "/" + path.relative_to(root).as_posix()
        immutable = "true" if re.search(r"[-.][0-9A-Za-z_-]{8,}\.\w+$", name) and "/assets/" in name else "false"
        kind = TYPES.get(path.suffix, "application/octet-stream")
        etag = hashlib.sha256(data).hexdigest()[:16]
        rows.append(f'    {{"{name}", "{kind}", "\\"{etag}\\"", {views[0]}, {views[1]}, {immutable}}},')
    table = "const PageFile kFiles[] = {\n" + "\n".join(rows) + "\n};\n" if rows else ""
    body = "return kFiles;" if rows else "return {};"
    target.write_text(
        '#include "serve/page.h"\n\n' + MACRO + "\n".join(externs) +
        "\n\nnamespace deepinfer::serve {\nnamespace {\n\n" + table +
        "\n}  // namespace\n\nstd::span<const PageFile> page_files() { " + body +
        " }\n\n}  // namespace deepinfer::serve\n", encoding="utf-8")


if __name__ == "__main__":
    main()
