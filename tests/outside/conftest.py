"""halfbyte beside the packages of requirements.txt; scripts/test.sh outside runs these tests."""
import os
import pathlib
import subprocess

import pytest

# Nothing is fetched while the tests run: everything they read is in the repository or made here.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

from checkpoints import as_released, small_model, with_official_names  # noqa: E402

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


@pytest.fixture(scope="session")
def saved(tmp_path_factory):
    """What save_pretrained() writes by default of a model that has no files yet."""
    folder = tmp_path_factory.mktemp("saved") / "model"
    small_model().save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def official(saved, tmp_path_factory):
    return with_official_names(saved, tmp_path_factory.mktemp("official") / "model")


@pytest.fixture(scope="session")
def released(official, tmp_path_factory):
    return as_released(official, tmp_path_factory.mktemp("released") / "model")


@pytest.fixture(scope="session")
def converted(halfbyte, tmp_path_factory):
    """converted(SRC, FORMAT, ...) is SRC in that format, made once."""
    made = {}

    def convert(source, *formats):
        for form in formats:
            if (source, form) not in made:
                made[source, form] = tmp_path_factory.mktemp(form) / "model"
                halfbyte("convert", source, made[source, form], "--format", form)
            source = made[source, form]
        return source

    return convert
