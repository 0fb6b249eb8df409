"""Installs ./python with pip into a fresh virtual environment and runs its tests there.

    python3 python_test.py SOURCE_DIR WORK_DIR COMPILER

Exits 77, which ctest calls skipped, if Python's headers, venv or the packages that pip would fetch
are not to be had on this machine.
"""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import sysconfig

SKIPPED = 77
SOURCE, WORK = map(pathlib.Path, sys.argv[1:3])
COMPILER = sys.argv[3]


def skip(reason):
    print(f"SKIPPED: the Python module is not tested here: {reason}")
    sys.exit(SKIPPED)


def run(*command):
    print("$", *command, flush=True)
    return subprocess.run([str(part) for part in command]).returncode


def build_requirements():
    text = (SOURCE / "python" / "pyproject.toml").read_text(encoding="utf-8")
    return re.findall(r'"([^"]+)"', re.search(r"requires = \[(.*?)\]", text).group(1))


def documented_program():
    """The Python program on docs/library.md."""
    page = (SOURCE / "docs" / "library.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    return block


def main():
    if not (pathlib.Path(sysconfig.get_paths()["include"]) / "Python.h").exists():
        skip("Python.h is missing (package python3-dev)")
    shutil.rmtree(WORK, ignore_errors=True)
    WORK.mkdir(parents=True)
    if run(sys.executable, "-m", "venv", WORK / "venv") != 0:
        skip("no virtual environment can be made (package python3-venv)")
    python = WORK / "venv" / "bin" / "python"
    pip = [python, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    if run(*pip, *build_requirements(), "numpy>=1.24", "pytest>=8") != 0:
        skip("pip cannot fetch its packages")
    # As in the build of the repository itself, letter for letter: then ccache has every object.
    os.environ["CXX"] = COMPILER
    if run(*pip, "--no-build-isolation", SOURCE / "python") != 0:
        return 1
    if run(python, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider",
           SOURCE / "python" / "tests") != 0:
        return 1
    (WORK / "page.py").write_text(documented_program(), encoding="utf-8")
    return run(python, WORK / "page.py", SOURCE / "models" / "tiny-v4-nvfp4")


if __name__ == "__main__":
    sys.exit(main())
