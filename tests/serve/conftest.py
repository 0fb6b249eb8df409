"""Servers that tests share."""
import pytest

from served import FAKE, Server


@pytest.fixture(scope="session")
def server():
    """The bundled model."""
    with Server("--max-num-seqs", 32, "--max-num-batched-tokens", 512) as started:
        yield started
        assert started.process.poll() is None, started.log_text()


@pytest.fixture(scope="session")
def fake():
    """No model: 2 ms a step, every printable character is followed by the next one."""
    with Server(*FAKE, "--fake-step-time", 0.002, "--max-model-len", 4096,
                "--max-num-seqs", 64) as started:
        yield started
        assert started.process.poll() is None, started.log_text()


@pytest.fixture
def client(server):
    return server.client()


@pytest.fixture
def model(client):
    return client.models.list().data[0].id
