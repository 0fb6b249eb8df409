"""halfbyte beside the packages of requirements.txt; scripts/test.sh outside runs these tests."""
import os
import pathlib
import subprocess

import pytest

# Nothing is fetched while the tests run: everything they read is in the repository or made here.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def halfbyte():
    """halfbyte("convert", SRC, DST, ...) runs the program and returns what it printed; another exit
    status than the expected one fails the test with the program's own words."""
    program = os.environ["HALFBYTE"]

    def call(*arguments, status=0):
        words = [program, *map(str, arguments)]
        done = subprocess.run(words, capture_output=True, text=True, timeout=300)
        assert done.returncode == status, f"{words}\n{done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    return call


@pytest.fixture(scope="session")
def bundled_model():
    return ROOT / "models" / "tiny-v4-nvfp4"
