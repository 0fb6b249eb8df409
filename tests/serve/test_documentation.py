"""What docs/serving.md shows is run as it stands, but for the port."""
import os
import pathlib
import re
import subprocess
import sys

import pytest

from served import SOURCE, Server

PAGE = (SOURCE / "docs" / "serving.md").read_text(encoding="utf-8")
DOCUMENTED = "127.0.0.1:8000"


def examples(language):
    """[(line number, program)]"""
    return [(PAGE[:match.start()].count("\n") + 1, match.group(1))
            for match in re.finditer(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
            if DOCUMENTED in match.group(1)]


@pytest.fixture(scope="module")
def documented():
    """A server as the page starts it."""
    with Server("--served-model-name", "tiny") as started:
        yield started


def run(server, line):
    python = pathlib.Path(sys.executable).parent
    done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=120,
                          env=os.environ | {"PATH": f"{python}:{os.environ['PATH']}"})
    assert done.returncode == 0, done.stderr
    assert server.process.poll() is None
    return done.stdout


def test_there_are_examples():
    assert len(examples("sh")) >= 5 and len(examples("python")) >= 3


@pytest.mark.parametrize("line, program", examples("sh"), ids=lambda value: f"line {value}"
                         if isinstance(value, int) else "")
def test_shell_examples(documented, line, program):
    output = run(documented, ["bash", "-euo", "pipefail", "-c",
                              program.replace(DOCUMENTED, documented.url.removeprefix("http://"))])
    assert output and '"error"' not in output


@pytest.mark.parametrize("line, program", examples("python"), ids=lambda value: f"line {value}"
                         if isinstance(value, int) else "")
def test_python_examples(documented, line, program):
    assert run(documented, [sys.executable, "-c",
                            program.replace(DOCUMENTED, documented.url.removeprefix("http://"))])
