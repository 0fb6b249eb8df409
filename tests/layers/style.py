"""Checks the rules of CONTRIBUTING.md that no compiler or formatter checks.

    python3 tests/layers/style.py REPOSITORY

Over src, include, tests, bench, scripts and cmake it reports, one line each:
  - a file of more than 700 lines whose first 20 lines do not say "This file is long because";
  - a line of more than 100 columns;
  - a note of unfinished work (the two usual words in capitals);
  - a header without #pragma once;
  - a file or folder named utils, common, helpers or impl.
And in the Markdown of docs and of the repository's first folder a line of more than 100 columns,
unless it stands in a table or in code, or has no space to break at.
"""
import pathlib
import re
import sys

FOLDERS = ("src", "include", "tests", "bench", "scripts", "cmake")
SUFFIXES = {".h", ".cc", ".inc", ".cu", ".cuh", ".py", ".sh", ".cmake"}
MAX_LINES = 700
MAX_COLUMNS = 100
UNFINISHED = re.compile(r"\b(" + "TO" + "DO|FIX" + "ME)\\b")
EMPTY_NAMES = re.compile(r"(utils?|common|helpers?|impl)")


def check_file(path, where):
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    if len(lines) > MAX_LINES and "This file is long because" not in "\n".join(lines[:20]):
        yield f"{where}: {len(lines)} lines; split it or say at its head why it is long"
    for number, line in enumerate(lines, 1):
        if len(line) > MAX_COLUMNS:
            yield f"{where}:{number}: {len(line)} columns; the limit is {MAX_COLUMNS}"
        if UNFINISHED.search(line):
            yield f"{where}:{number}: unfinished work; do it, or file an issue"
    if path.suffix in (".h", ".cuh") and "#pragma once" not in lines:
        yield f"{where}: a header starts with #pragma once"


def check_markdown(path, where):
    in_code = False
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if line.lstrip().startswith("```"):
            in_code = not in_code
        elif not in_code and not line.lstrip().startswith("|") and len(line) > MAX_COLUMNS:
            if " " in line.lstrip(" -*")[:MAX_COLUMNS]:
                yield f"{where}:{number}: {len(line)} columns; the limit is {MAX_COLUMNS}"


def check(root):
    """Returns the faults of the tree at `root`, one sentence each."""
    root = pathlib.Path(root).resolve()
    faults = []
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*")):
            where = path.relative_to(root)
            if where.parts[:2] == ("tests", "data") or "__pycache__" in where.parts:
                continue
            if EMPTY_NAMES.fullmatch(path.stem):
                faults.append(f"{where}: name it after what it holds")
            if path.suffix in SUFFIXES or path.name == "CMakeLists.txt":
                faults += check_file(path, where)
    for path in sorted([*root.glob("*.md"), *(root / "docs").rglob("*.md")]):
        faults += check_markdown(path, path.relative_to(root))
    return faults


if __name__ == "__main__":
    found = check(sys.argv[1])
    print("\n".join(found) or "style rules hold")
    sys.exit(1 if found else 0)
