"""A full queue, clients that leave, clients that come back."""
import json
import socket

import openai
import pytest

from served import FAKE, Server, until

LONG = {"prompt": "a", "max_tokens": 3000, "ignore_eos": True}


def stream_raw(server, body):
    """A socket that has sent a request."""
    connection = socket.create_connection(("127.0.0.1", server.port))
    text = json.dumps(body).encode()
    connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
                       b"Content-Type: application/json\r\n"
                       b"Content-Length: %d\r\n\r\n" % len(text) + text)
    return connection


@pytest.fixture
def narrow():
    """Runs one request and lets none wait."""
    with Server(*FAKE, "--fake-step-time", 0.001, "--max-num-seqs", 1,
                "--max-queued-requests", 0, "--max-model-len", 4096) as server:
        yield server


def test_a_full_queue_is_429_and_a_retry_waits_as_told(narrow, monkeypatch):
    slow = stream_raw(narrow, LONG | {"stream": True})
    until(lambda: narrow.running() == 1, "running")
    with pytest.raises(openai.RateLimitError) as caught:
        narrow.client().completions.create(model=None, prompt="b", max_tokens=1)
    assert caught.value.code == "queue_full"
    told = caught.value.response.headers["retry-after"]
    assert 1 <= int(told) <= 60
    # Nobody parses a request that there is no room for.
    assert narrow.request("/v1/completions", b"[")[0] == 429

    slept = []

    def sleep(seconds):  # instead of waiting: the stream that is in the way goes
        slept.append(seconds)
        slow.close()
        until(lambda: narrow.running() == 0, "the slot is free")

    monkeypatch.setattr(openai._base_client.time, "sleep", sleep)
    answer = narrow.client(max_retries=2).completions.create(model=None, prompt="b", max_tokens=1)
    assert answer.choices[0].finish_reason == "length"
    assert slept == [float(told)]
    until(lambda: narrow.request("/v1/completions", b"[")[0] == 400, "parsed again")


def test_leaving_a_stream_cancels_it(fake):
    aborted = fake.metric("halfbyte:request_success_total", finished_reason="abort")
    stream = fake.client().completions.create(
        model=None, prompt="a", max_tokens=4000, stream=True, extra_body={"ignore_eos": True})
    for _ in range(3):
        next(stream)
    assert fake.running() == 1
    stream.close()
    fake.until_idle()
    assert fake.metric("halfbyte:request_success_total", finished_reason="abort") == aborted + 1


@pytest.mark.parametrize("streams", [True, False])
@pytest.mark.parametrize("leave", ["close", "reset", "half"])
def test_leaving_a_socket_cancels(fake, streams, leave):
    aborted = fake.metric("halfbyte:request_success_total", finished_reason="abort")
    connection = stream_raw(fake, LONG | {"stream": streams})
    until(lambda: fake.running() == 1, "running")
    if leave == "reset":
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    if leave == "half":
        connection.shutdown(socket.SHUT_WR)
    else:
        connection.close()
    fake.until_idle()
    assert fake.metric("halfbyte:request_success_total", finished_reason="abort") == aborted + 1
    connection.close()
