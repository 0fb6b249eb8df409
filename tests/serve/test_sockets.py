"""What no decent client sends: the server answers 4xx and nobody else notices."""
import json
import re
import socket
import struct
import threading

import pytest

from served import PATIENCE, until

FIELDS = b"Host: localhost\r\nContent-Type: application/json\r\n"


def post(path, body, fields=FIELDS):
    return (b"POST %s HTTP/1.1\r\n%sContent-Length: %d\r\n\r\n%s" %
            (path.encode(), fields, len(body), body))


def connect(server):
    connection = socket.create_connection(("127.0.0.1", server.port))
    connection.settimeout(PATIENCE)
    return connection


def read_to_end(connection):
    data = b""
    while chunk := connection.recv(65536):
        data += chunk
    return data


def exchange(server, data):
    """(status, error object) of what the server answers to these bytes."""
    with connect(server) as connection:
        def send():
            try:
                connection.sendall(data)
            except OSError:
                pass  # the server need not read what it refuses
        sender = threading.Thread(target=send)
        sender.start()
        answer = b""
        while b"\r\n\r\n" not in answer:
            chunk = connection.recv(65536)
            assert chunk, f"closed without an answer: {answer!r}"
            answer += chunk
        head, _, body = answer.partition(b"\r\n\r\n")
        length = int(re.search(rb"(?i)content-length: (\d+)", head).group(1))
        while len(body) < length:
            body += connection.recv(65536)
    sender.join()
    return int(head.split()[1]), json.loads(body)["error"]


@pytest.fixture
def undisturbed(fake):
    """While the test runs, four streams do; afterwards not a token of them is missing."""
    def read(results, number):
        with connect(fake) as connection:
            body = {"prompt": "a", "max_tokens": 600, "stream": True, "return_token_ids": True}
            connection.sendall(post("/v1/completions", json.dumps(body).encode(),
                                    FIELDS + b"Connection: close\r\n"))
            results[number] = read_to_end(connection).decode()

    expected = fake.json("/v1/completions", {"prompt": "a", "max_tokens": 600})
    results = [None] * 4
    threads = [threading.Thread(target=read, args=(results, i)) for i in range(4)]
    for thread in threads:
        thread.start()
    until(lambda: fake.running() == 4, "the streams run")
    yield
    for thread in threads:
        thread.join()
    for result in results:
        text = "".join(json.loads(line[6:])["choices"][0]["text"]
                       for line in result.splitlines()
                       if line.startswith("data: {"))
        assert text == expected["choices"][0]["text"]
        assert "data: [DONE]" in result


def completions(**fields):
    return post("/v1/completions", json.dumps({"prompt": "x"} | fields).encode())


def raw(body):
    return post("/v1/completions", body)


def headed(fields, rest=b""):
    return b"POST /v1/completions HTTP/1.1\r\n" + FIELDS + fields + b"\r\n\r\n" + rest


# what: bytes, status, code, param
MALFORMED = {
    "bad JSON": (raw(b'{"prompt": '), 400, "invalid_json", None),
    "no object": (raw(b"[]"), 400, "invalid_json|invalid_value", None),
    "empty body": (raw(b""), 400, "invalid_json", None),
    "two objects": (raw(b'{"prompt":"x"}{}'), 400, "invalid_json", None),
    "deep nesting": (raw(b'{"prompt":' + b"[" * 5000), 400, "invalid_json", None),
    "invalid UTF-8": (raw(b'{"prompt": "\xff\xfe"}'), 400, "invalid_json", None),
    "half a surrogate": (raw(b'{"prompt": "\\ud800"}'), 400, "invalid_json|invalid_value", None),
    "huge exponent": (raw(b'{"prompt":"x","temperature":1e999}'), 400,
                      "invalid_json|invalid_value", None),
    "no prompt": (raw(b"{}"), 400, "missing_field", "prompt"),
    "no messages": (post("/v1/chat/completions", b"{}"), 400, "missing_field", "messages"),
    "prompt of another type": (completions(prompt={"a": 1}), 400, "invalid_value", "prompt"),
    "a token that is none": (completions(prompt=[1, 10 ** 9]), 400, "invalid_value", "prompt"),
    "a text for a number": (completions(max_tokens="5"), 400, "invalid_value", "max_tokens"),
    "a truth for a number": (completions(n=True), 400, "invalid_value", "n"),
    "negative": (completions(max_tokens=-5), 400, "invalid_value", "max_tokens"),
    "huge": (completions(max_tokens=10 ** 40), 400, "invalid_value", "max_tokens"),
    "unknown model": (completions(model="nobody"), 404, "model_not_found", "model"),
    "context overflow": (completions(prompt="x " * 9000), 400, "context_length_exceeded",
                         "prompt"),
    "10 MB body": (completions(prompt="x " * 5_000_000), 400, "context_length_exceeded",
                   "prompt"),
    "another media type": (post("/v1/completions", b"{}",
                                b"Host: localhost\r\nContent-Type: text/plain\r\n"),
                           415, None, None),
    "another route": (post("/v1/nothing", b"{}"), 404, "route_not_found", None),
    "another method": (b"DELETE /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n", 405,
                       "method_not_allowed", None),
    "too large": (headed(b"Content-Length: 99999999"), 413, "body_too_large", None),
    "a negative length": (headed(b"Content-Length: -1"), 400, None, None),
    "length and chunks": (headed(b"Content-Length: 2\r\nTransfer-Encoding: chunked",
                                 b"0\r\n\r\n"), 400, None, None),
    "a chunk that is none": (headed(b"Transfer-Encoding: chunked", b"zz\r\nabc\r\n"), 400,
                             None, None),
    "one byte of such a chunk": (headed(b"Transfer-Encoding: chunked", b"z"), 400, None, None),
    "no HTTP": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400, None, None),
    "a long URL": (b"GET /" + b"a" * 5000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", 414,
                   None, None),
    "a flood of headers": (b"GET /live HTTP/1.1\r\n" + b"x-a: 1\r\n" * 100_000, 431, None,
                           None),
    "one long header": (b"GET /live HTTP/1.1\r\nx-a: " + b"a" * 1_000_000, 431, None, None),
}


@pytest.mark.usefixtures("undisturbed")
def test_malformed_requests_are_refused_with_the_field_named(fake):
    wrong = {}
    for name, (data, status, code, param) in MALFORMED.items():
        got, error = exchange(fake, data)
        if (got != status or not error["message"] or not re.fullmatch(code or ".*", error["code"])
                or not (error["param"] or "").startswith(param or "")):
            wrong[name] = (got, error)
    assert not wrong


@pytest.mark.usefixtures("undisturbed")
def test_clients_that_leave_in_any_phase(fake):
    request = completions(max_tokens=50, stream=True)
    for length in (1, 10, 60, len(request) - 5, len(request)):
        for linger in (False, True):
            connection = connect(fake)
            connection.sendall(request[:length])
            if linger:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.close()
    assert fake.request("/live")[0] == 200


@pytest.mark.usefixtures("undisturbed")
def test_slow_heads_are_ended(fake):
    slow_head = [connect(fake) for _ in range(50)]
    for connection in slow_head:
        connection.sendall(b"GET /live HTTP/1.1\r\nx-slow: ")
    for connection in slow_head:
        answer = read_to_end(connection)
        assert answer == b"" or answer.startswith(b"HTTP/1.1 408"), answer
        connection.close()


@pytest.mark.usefixtures("undisturbed")
def test_uploads_that_stall_hold_nobody_up(fake):
    stalled = [connect(fake) for _ in range(50)]
    for connection in stalled:
        connection.sendall(headed(b"Content-Length: 1000000", b'{"prompt": "' + b"x" * 100_000))
    assert fake.json("/v1/completions", {"prompt": "a", "max_tokens": 3})["usage"]
    for connection in stalled:
        connection.shutdown(socket.SHUT_WR)
        assert read_to_end(connection).startswith(b"HTTP/1.1 400")
        connection.close()


def test_early_bytes_of_a_next_request_wait(fake):
    with connect(fake) as connection:
        one = completions(max_tokens=3)
        last = one.replace(b"Host: localhost", b"Host: localhost\r\nConnection: close")
        connection.sendall(one + one + last)
        answer = read_to_end(connection)
    assert answer.count(b"HTTP/1.1 200") == 3
    assert answer.count(b'"finish_reason":"length"') == 3


def test_chunked_bodies_and_http_1_0(fake):
    body = b'{"prompt":"a","max_tokens":3}'
    with connect(fake) as connection:
        connection.sendall(b"POST /v1/completions HTTP/1.1\r\n" + FIELDS + b"Connection: close\r\n"
                           b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n" %
                           (len(body), body))
        assert b'"text":"bcd"' in read_to_end(connection)
    with connect(fake) as connection:
        connection.sendall(post("/v1/completions", body).replace(b"HTTP/1.1", b"HTTP/1.0"))
        assert b'"text":"bcd"' in read_to_end(connection)
