"""One client at its worst, and what others get meanwhile: the bounds of docs/serving.md."""
import http.client
import json
import socket

import pytest

from served import FAKE, PATIENCE, Server, until

OTHER = "127.0.0.2"  # another client than 127.0.0.1


def ask(server, path, body, address=OTHER):
    """(status, object) for a client of this address."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE,
                                            source_address=(address, 0))
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    connection.request("POST", path, data, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    found = answer.status, json.loads(answer.read())
    connection.close()
    return found


def send(server, path, body, address="127.0.0.1"):
    """A connection that has sent a request."""
    connection = socket.create_connection(("127.0.0.1", server.port), PATIENCE, (address, 0))
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    connection.sendall(f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json"
                       f"\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data)
    return connection


@pytest.fixture(scope="module")
def small():
    """Two slots, a queue of four."""
    with Server(*FAKE, "--fake-step-time", 0.001, "--max-num-seqs", 2, "--max-model-len", 4096,
                "--max-queued-requests", 4) as server:
        yield server
        assert server.process.poll() is None, server.log_text()


@pytest.mark.parametrize("route, body", [
    ("/v1/completions", b'{"prompt":"' + b" " * 10_000_000 + b'"}'),
    ("/v1/completions", b'{"prompt":["a","' + b"a" * 10_000_000 + b'"]}'),
    ("/v1/completions", b'{"prompt":[' + b"5," * 100_000 + b"5]}"),
    ("/v1/chat/completions",
     b'{"messages":[{"role":"user","content":"' + b"1" * 10_000_000 + b'"}]}'),
    ("/render", b'{"prompt":"' + b" " * 10_000_000 + b'"}'),
    ("/tokenize", b'{"prompt":"' + b" " * 10_000_000 + b'"}'),
    ("/detokenize", b'{"tokens":[' + b"5," * 100_000 + b"5]}"),
], ids=["prompt", "prompts", "ids", "chat", "render", "tokenize", "detokenize"])
def test_what_cannot_fit_is_refused_by_its_size(small, route, body):
    status, answer = ask(small, route, body)
    assert (status, answer["error"]["code"]) == (400, "context_length_exceeded")
    assert "more than" in answer["error"]["message"]


def test_work_for_a_client_that_left_ends_and_holds_nobody(small):
    # Almost as much as /tokenize takes, of the slowest kind, many times.
    body = {"prompt": " " * 1_500_000}
    left = [send(small, "/tokenize", body) for _ in range(20)]
    for connection in left:
        connection.close()
    status, answer = ask(small, "/v1/completions", {"prompt": "a", "max_tokens": 3})
    assert (status, answer["choices"][0]["text"]) == (200, "bcd")


def test_a_queue_that_one_client_fills_is_open_to_another(small):
    stream = {"prompt": "a", "max_tokens": 4000, "ignore_eos": True, "stream": True}
    first = [send(small, "/v1/completions", stream) for _ in range(12)]
    until(lambda: small.metric("halfbyte:num_requests_waiting") == 4, "full")
    assert ask(small, "/v1/completions", stream, "127.0.0.1")[0] == 429
    # It takes a slot, too: whoever had both goes on later.
    status, answer = ask(small, "/v1/completions", {"prompt": "a", "max_tokens": 3})
    assert (status, answer["choices"][0]["text"]) == (200, "bcd")
    assert small.metric("halfbyte:num_preemptions_total") >= 1
    for connection in first:
        connection.close()
    small.until_idle()


def test_choices_count_not_requests(small):
    many = {"prompt": ["a", "b"], "n": 8, "max_tokens": 4000, "ignore_eos": True, "stream": True}
    first = send(small, "/v1/completions", many)
    until(lambda: small.running() == 2, "running")
    second = send(small, "/v1/completions", many)
    until(lambda: small.metric("halfbyte:num_requests_waiting") >= 2, "taken whole")
    assert ask(small, "/v1/completions", {"prompt": "a"}, "127.0.0.1")[0] == 429
    assert ask(small, "/v1/completions", {"prompt": "a", "max_tokens": 3})[0] == 200
    first.close()
    second.close()
    small.until_idle()


def test_requests_in_a_row_take_turns(small):
    with socket.create_connection(("127.0.0.1", small.port), PATIENCE) as greedy:
        greedy.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n" * 200)
        assert ask(small, "/v1/completions", {"prompt": "a", "max_tokens": 3})[0] == 200


def test_preempted_streams_lose_nothing():
    with Server(*FAKE, "--fake-step-time", 0.001, "--max-num-seqs", 4,
                "--max-model-len", 4096) as server:
        expected = server.json("/v1/completions", {"prompt": "a", "max_tokens": 1500,
                                                   "ignore_eos": True})["choices"][0]["text"]
        long = {"prompt": "a", "n": 4, "max_tokens": 1500, "ignore_eos": True}
        held = send(server, "/v1/completions", long)
        until(lambda: server.running() == 4, "running")
        for _ in range(3):
            assert ask(server, "/v1/completions", {"prompt": ["a"] * 4, "max_tokens": 50})[0] == 200
        answer = http.client.HTTPResponse(held)
        answer.begin()
        texts = [choice["text"] for choice in json.loads(answer.read())["choices"]]
        assert texts == [expected] * 4
        assert server.metric("halfbyte:num_preemptions_total") >= 2
        held.close()
