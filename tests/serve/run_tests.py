"""Runs the tests of this folder against a built program.

    python3 run_tests.py SOURCE_DIR WORK_DIR PROGRAM EXAMPLES [test_X.py...]

Makes a virtual environment with requirements.txt in SOURCE_DIR/build, once for all presets.
EXAMPLES is what schemathesis may try for each route; without names all files run. Exits 77, which
ctest calls skipped, if the packages are not to be had.
"""
import fcntl
import hashlib
import os
import pathlib
import shutil
import subprocess
import sys

SKIPPED = 77
HERE = pathlib.Path(__file__).resolve().parent
SOURCE, WORK, PROGRAM = map(pathlib.Path, sys.argv[1:4])
EXAMPLES, NAMES = sys.argv[4], sys.argv[5:]


def skip(reason):
    print(f"SKIPPED: the server is not tested with real clients here: {reason}")
    sys.exit(SKIPPED)


def run(*command, **options):
    print("$", *command, flush=True)
    return subprocess.run([str(part) for part in command], check=False, **options).returncode


def environment():
    """The Python of a virtual environment that has exactly requirements.txt."""
    requirements = HERE / "requirements.txt"
    digest = hashlib.sha256(requirements.read_bytes()).hexdigest()[:12]
    home = SOURCE / "build" / "serve_clients"
    home.mkdir(parents=True, exist_ok=True)
    venv = home / f"venv-{digest}"
    python = venv / "bin" / "python"
    lock = (home / "lock").open("w")  # tests of several presets may run at once
    fcntl.flock(lock, fcntl.LOCK_EX)
    if (venv / "complete").exists():
        return python
    shutil.rmtree(venv, ignore_errors=True)
    if run(sys.executable, "-m", "venv", venv) != 0:
        skip("no virtual environment can be made (package python3-venv)")
    if run(python, "-m", "pip", "install", "-q", "--disable-pip-version-check", "-r",
           requirements) != 0:
        skip("pip cannot fetch openai and schemathesis")
    (venv / "complete").touch()
    return python


def main():
    python = environment()
    WORK.mkdir(parents=True, exist_ok=True)
    settings = {"HALFBYTE_PROGRAM": PROGRAM, "HALFBYTE_SOURCE": SOURCE, "HALFBYTE_WORK": WORK,
                "HALFBYTE_EXAMPLES": EXAMPLES, "PYTHONDONTWRITEBYTECODE": "1"}
    return run(python, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider",
               *([HERE / name for name in NAMES] or [HERE]),
               env=os.environ | {name: str(value) for name, value in settings.items()}, cwd=WORK)


if __name__ == "__main__":
    sys.exit(main())
