"""Builds and judges mutants: copies of one source file with a known fault in it.

    mutant.py write MUTANT SOURCE OUT                       writes the faulty copy of SOURCE
    mutant.py check MUTANT SOURCE PROGRAM TEST_FILTER       passes if PROGRAM's tests catch it

A file NAME.mutant says first, in words, what the fault is, then gives edits, each as

    @@ replace
    lines that stand in SOURCE exactly once
    @@ by
    lines that take their place
    @@ end

`write` never fails a build: where an edit no longer fits, it copies SOURCE as it is, and `check`
says so. Caught means: a test of the filter failed, by an assertion; a crash does not count.
"""
import pathlib
import re
import subprocess
import sys

EDIT = re.compile(r"^@@ replace\n(.*?)^@@ by\n(.*?)^@@ end$", re.MULTILINE | re.DOTALL)


def mutate(mutant, source):
    """The faulty text; ValueError if an edit does not fit."""
    edits = EDIT.findall(mutant.read_text(encoding="utf-8"))
    if not edits:
        raise ValueError(f"{mutant}: no edit")
    text = source.read_text(encoding="utf-8")
    for old, new in edits:
        if text.count(old) != 1:
            raise ValueError(f"{mutant}: these lines stand {text.count(old)} times in {source}, "
                             f"not once; put the mutant in step with it:\n{old}")
        text = text.replace(old, new)
    return text


def write(mutant, source, out):
    try:
        text = mutate(mutant, source)
    except ValueError:
        text = source.read_text(encoding="utf-8")
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(text, encoding="utf-8")


def check(mutant, source, program, test_filter):
    try:
        mutate(mutant, source)
    except ValueError as error:
        return str(error)
    done = subprocess.run([program, f"--gtest_filter={test_filter}", "--gtest_brief=1"],
                          capture_output=True, text=True, errors="replace")
    failed = sorted(set(re.findall(r"^\[  FAILED  \] ([\w./]+)", done.stdout, re.MULTILINE)))
    print(f"exit status {done.returncode}; failed: {', '.join(failed) or 'no test'}")
    if re.search(r"Running 0 tests|0 tests from 0", done.stdout):
        return f"no test is called {test_filter}"
    if done.returncode == 0:
        return f"{mutant.stem} SURVIVED {test_filter}: no test failed"
    if done.returncode != 1 or not failed:
        print(done.stdout[-2000:], done.stderr[-2000:])
        return f"{mutant.stem}: the program crashed, which is no proof that a test sees the fault"
    return None


def main():
    command, mutant, source, *rest = sys.argv[1:]
    if command == "write":
        return write(pathlib.Path(mutant), pathlib.Path(source), pathlib.Path(rest[0]))
    return check(pathlib.Path(mutant), pathlib.Path(source), rest[0], rest[1])


if __name__ == "__main__":
    sys.exit(main())
