"""Checks docs/moe-behaviours.md against the tests.

    python3 tests/layers/behaviours.py REPOSITORY

Reports, one line each: a number from R1 to R135 that has no row or several; a row that names a test
which no *_test.cc defines; a row that names none and gives no reason either.
"""
import pathlib
import re
import sys

COUNT = 135
REASONS = ("GPU", "later", "not applicable to CPUs")


def tests_of(root):
    """All test names as Suite.Name."""
    names = set()
    for top in ("src", "tests"):
        for path in (root / top).rglob("*test*.cc"):
            text = path.read_text(encoding="utf-8")
            names |= {f"{suite}.{name}" for suite, name in re.findall(
                r"^(?:TEST|TEST_F|TEST_P|RC_GTEST_PROP|TYPED_TEST)\(\s*(\w+),\s*(\w+)", text,
                re.MULTILINE)}
    return names


def check(root):
    root = pathlib.Path(root)
    table = (root / "docs/moe-behaviours.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| R(\d+) \|[^|]*\| (.*) \|$", table, re.MULTILINE)
    numbers = [int(number) for number, _ in rows]
    faults = [f"R{n}: {numbers.count(n)} rows" for n in range(1, COUNT + 1)
              if numbers.count(n) != 1]
    faults += [f"R{n}: no such behaviour" for n in numbers if not 1 <= n <= COUNT]
    known = tests_of(root)
    for number, held in rows:
        named = re.findall(r"`(\w+\.\w+)`", held)
        faults += [f"R{number}: there is no test {name}" for name in named if name not in known]
        if not named and not held.startswith(REASONS):
            faults.append(f"R{number}: neither a test nor one of the reasons {', '.join(REASONS)}")
    return faults


if __name__ == "__main__":
    found = check(sys.argv[1])
    print("\n".join(found) or "every behaviour has its row, every test exists")
    sys.exit(1 if found else 0)
