"""Runs the built program against the table in cases.py.

    cli_test.py PROGRAM REPOSITORY GROUP     runs the cases of one group (a command, or "usage")
    cli_test.py --self-test                  shows that each check can fail

A bad call must end with the exit code and the sentence its row expects, on one line of stderr,
with nothing on stdout (unless the row expects a report there) and no trace of an abort or a
sanitizer.
"""
import contextlib
import os
import pathlib
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import unittest

import cases

TIMEOUT_SECONDS = 300
NOBODY = 65534
# What a crash, a broken invariant or a sanitizer leaves on stderr.
TRACES = re.compile(
    r"terminate called|Assertion|broken invariant|check failed|Sanitizer|runtime error:|what\(\)|"
    r"core dumped|Segmentation fault")


def faults_of(case, run):
    """What is wrong with a finished run: a list of sentences, empty if all is well."""
    faults = []
    if run.returncode != case.exit:
        faults.append(f"exit code {run.returncode}, expected {case.exit}")
    if TRACES.search(run.stderr):
        faults.append("stderr shows a crash")
    if not re.search(case.stderr, run.stderr, re.IGNORECASE):
        faults.append(f"stderr does not match /{case.stderr}/")
    if not re.search(case.stdout, run.stdout):
        faults.append(f"stdout does not match /{case.stdout}/")
    if case.exit == 0 or case.stdout:
        return faults  # the answer, or a report of faults, is on stdout
    if run.stdout:
        faults.append("stdout is not empty")
    if run.stderr.count("\n") != 1 or not run.stderr.endswith("\n"):
        faults.append("stderr is not one line")
    if not run.stderr.startswith("halfbyte"):
        faults.append("stderr does not begin with the program's name")
    return faults


def make_files(folder, model):
    """Creates what the {names} in the table stand for and returns them."""
    names = {"tmp": folder, "model": model, "missing": folder / "missing"}
    for name, content in cases.FILES.items():
        path = folder / name.replace("_dir", "")
        if name.endswith("_dir"):
            path.mkdir()
            for file_name, text in content.items():
                (path / file_name).parent.mkdir(parents=True, exist_ok=True)
                if isinstance(text, pathlib.Path):
                    (path / file_name).symlink_to(text)
                else:
                    (path / file_name).write_bytes(text)
        else:
            path.write_bytes(content)
        names[name] = path
    locked = folder / "locked"
    locked.mkdir()
    (locked / "file").write_text("[1]")
    (locked / "file").chmod(0)
    locked.chmod(0)
    names["locked_dir"] = locked
    names["locked_file"] = folder / "locked_file"
    names["locked_file"].write_text("[1]")
    names["locked_file"].chmod(0)
    names["read_only_dir"] = folder / "read_only"
    names["read_only_dir"].mkdir()
    names["read_only_dir"].chmod(0o555)
    names["pipe"] = folder / "pipe"
    os.mkfifo(names["pipe"])
    return names


def run(program, case, names):
    arguments = [argument.format(**names) for argument in case.args]
    # Root may read and write everything, so cases about permissions run as nobody.
    user = NOBODY if case.unprivileged and os.geteuid() == 0 else None
    environment = {**os.environ, "HOME": str(names["tmp"])}
    if case.limit and case.limit[0] == "NPROC":
        # The leak check starts a thread of its own, which is what the limit forbids.
        environment["ASAN_OPTIONS"] = environment.get("ASAN_OPTIONS", "") + ":detect_leaks=0"

    def set_limit():
        which, value = case.limit
        resource.setrlimit(getattr(resource, f"RLIMIT_{which}"), (value, value))

    with open(case.stdout_to, "w") if case.stdout_to else contextlib.nullcontext() as stdout:
        result = subprocess.run(
            [program, *arguments], stdin=subprocess.DEVNULL, stdout=stdout or subprocess.PIPE,
            stderr=subprocess.PIPE, text=True, errors="replace", timeout=TIMEOUT_SECONDS,
            user=user, group=user, env=environment, extra_groups=[] if user else None,
            cwd=names["tmp"], preexec_fn=set_limit if case.limit else None)
    result.stdout = result.stdout or ""
    return arguments, result


def main(program, repository, group):
    rows = [case for case in cases.CASES if case.group == group]
    if not rows:
        sys.exit(f"cases.py has no group '{group}'")
    program = pathlib.Path(program).resolve()
    failures = 0
    with tempfile.TemporaryDirectory(prefix="halfbyte_cli_") as folder:
        folder = pathlib.Path(folder)
        folder.chmod(0o755)
        names = make_files(folder, pathlib.Path(repository).resolve() / "models/tiny-v4-nvfp4")
        if any(case.unprivileged for case in rows) and os.geteuid() == 0:
            # The clone may lie where nobody cannot go.
            program = shutil.copy(program, folder / "halfbyte")
            if any("{model}" in word for c in rows if c.unprivileged for word in c.args):
                names["model"] = shutil.copytree(names["model"], folder / "model")
        for case in rows:
            try:
                arguments, result = run(program, case, names)
                faults = faults_of(case, result)
            except subprocess.TimeoutExpired as timeout:
                arguments, result, faults = timeout.cmd[1:], None, ["it did not end"]
            if faults:
                failures += 1
                print(f"FAILED: halfbyte {' '.join(map(str, arguments))}\n  {'; '.join(faults)}")
                if result:
                    print(f"  stderr: {result.stderr[:2000]!r}\n  stdout: {result.stdout[:500]!r}")
        for path in folder.rglob("*"):  # so that the folder can be removed
            if path.is_dir():
                path.chmod(0o755)
        (folder / "locked").chmod(0o755)
    print(f"{group}: {len(rows) - failures} of {len(rows)} calls behave")
    sys.exit(1 if failures else 0)


class SelfTest(unittest.TestCase):
    CASE = cases.Case("usage", ["x"], 1, "no such file: /a")

    def faults(self, exit_code, stdout, stderr):
        return faults_of(self.CASE, subprocess.CompletedProcess([], exit_code, stdout, stderr))

    def test_accepts_what_the_row_says(self):
        self.assertEqual(self.faults(1, "", "halfbyte x: no such file: /a\n"), [])

    def test_finds_each_deviation(self):
        good = "halfbyte x: no such file: /a\n"
        for exit_code, stdout, stderr, fault in (
                (0, "", good, "exit code 0"), (1, "text", good, "stdout is not empty"),
                (1, "", good + "more\n", "not one line"), (1, "", good.strip(), "not one line"),
                (1, "", "halfbyte x: odd\n", "does not match"),
                (1, "", "no such file: /a\n", "program's name"),
                (-6, "", good, "exit code -6"),
                (1, "", good + "AddressSanitizer: heap-use-after-free\n", "crash")):
            with self.subTest(fault=fault, stderr=stderr):
                self.assertIn(fault, "; ".join(self.faults(exit_code, stdout, stderr)))


if __name__ == "__main__":
    if sys.argv[1:] == ["--self-test"]:
        unittest.main(argv=sys.argv[:1])
    main(*sys.argv[1:])
