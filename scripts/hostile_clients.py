"""What clients do to a server that means nothing well, each behaviour a function of a Crowd.

A behaviour runs in a process of its own until it is killed; everything stays on this machine and
comes from 127.0.0.2, another address than that of the polite clients.
"""
import json
import random
import selectors
import socket
import struct
import time

JSON_FIELDS = "Host: localhost\r\nContent-Type: application/json\r\n"


def post(path, body, fields=""):
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return (f"POST {path} HTTP/1.1\r\n{JSON_FIELDS}{fields}"
            f"Content-Length: {len(data)}\r\n\r\n").encode() + data


def get(path, fields=""):
    return f"GET {path} HTTP/1.1\r\nHost: localhost\r\n{fields}\r\n".encode()


def completions(**fields):
    return post("/v1/completions", {"prompt": "a", "ignore_eos": True} | fields)


def chat(**fields):
    return post("/v1/chat/completions",
                {"messages": [{"role": "user", "content": "a"}]} | fields)


class Crowd:
    """Many connections of one client on one thread."""

    def __init__(self, port, address="127.0.0.2"):
        self.port, self.address = port, address

    def connect(self, receive_buffer=0):
        connection = socket.socket()
        if receive_buffer:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        connection.bind((self.address, 0))
        connection.settimeout(10)
        connection.connect(("127.0.0.1", self.port))
        return connection

    def hold(self, count, first=b"", drip=b"", pause=1.0):
        """Keeps `count` connections open that have sent `first`; each sends `drip` every `pause`
        seconds and is opened anew when the server ends it."""
        held = []
        while True:
            while len(held) < count:
                try:
                    connection = self.connect(4096)
                    connection.sendall(first)
                    connection.setblocking(False)
                    held.append(connection)
                except OSError:
                    time.sleep(0.05)
                    break
            time.sleep(pause)
            alive = []
            for connection in held:
                try:
                    if drip:
                        connection.send(drip)
                    alive.append(connection)
                except BlockingIOError:
                    alive.append(connection)
                except OSError:
                    connection.close()
            held = alive

    def flood(self, count, request, read=True, at_once=1, close=False, then=None):
        """`count` connections that send `request` as soon as the last answer came (or without
        reading any); `then` is done to each connection after it has sent."""
        selector = selectors.DefaultSelector()
        unsent = {}

        def begin():
            try:
                connection = self.connect(0 if read else 4096)
            except OSError:
                return
            connection.setblocking(False)
            unsent[connection] = request() * at_once
            selector.register(connection, selectors.EVENT_READ | selectors.EVENT_WRITE)

        def end(connection):
            selector.unregister(connection)
            del unsent[connection]
            connection.close()

        while True:
            while len(unsent) < count:
                begin()
                if len(unsent) == 0:
                    time.sleep(0.05)
            for key, events in selector.select(1):
                connection = key.fileobj
                try:
                    if events & selectors.EVENT_WRITE and unsent[connection]:
                        sent = connection.send(unsent[connection])
                        unsent[connection] = unsent[connection][sent:]
                        if not unsent[connection]:
                            if then is not None and then(connection):
                                end(connection)
                                continue
                            selector.modify(connection, selectors.EVENT_READ)
                    if events & selectors.EVENT_READ:
                        if not read:
                            selector.modify(connection, 0 or selectors.EVENT_WRITE)
                            continue
                        got = connection.recv(1 << 20)
                        if not got or close:
                            end(connection)
                        elif not unsent[connection]:
                            unsent[connection] = request() * at_once
                            selector.modify(connection,
                                            selectors.EVENT_READ | selectors.EVENT_WRITE)
                except BlockingIOError:
                    pass
                except OSError:
                    end(connection)

    def stall(self, count, request, pause=60.0, size=1):
        """`count` answers of which `size` bytes are read every `pause` seconds."""
        held = []
        while True:
            while len(held) < count:
                try:
                    connection = self.connect(4096)
                    connection.sendall(request())
                    connection.setblocking(False)
                    held.append(connection)
                except OSError:
                    time.sleep(0.05)
                    break
            time.sleep(pause)
            alive = []
            for connection in held:
                try:
                    if connection.recv(size):
                        alive.append(connection)
                        continue
                    connection.close()
                except BlockingIOError:
                    alive.append(connection)
                except OSError:
                    connection.close()
            held = alive


def leave(connection):
    return True


def reset(connection):
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    return True


def half_close(connection):
    connection.shutdown(socket.SHUT_WR)
    return False


SPACES = b'{"max_tokens":1,"prompt":"' + b" " * 30_000_000 + b'"}'
LETTERS = b'{"messages":[{"role":"user","content":"' + b"a" * 30_000_000 + b'"}]}'
MANY_IDS = b'{"max_tokens":1,"prompt":[' + b"1," * 4_000_000 + b"1]}"
MANY_FIELDS = b'{"prompt":"a",' + b",".join(b'"f%d":1' % i for i in range(190_000)) + b"}"
DEEP = b'{"prompt":' + b"[" * 100_000
FITS = "word " * 3000
SOME_SPACES = {"prompt": " " * 190_000}


def unknown_fields():
    return completions(max_tokens=1, **{f"x{random.random()}": 1 for _ in range(30)})


# name: what a crowd does
BEHAVIOURS = {
    "small requests, 500 connections": lambda c: c.flood(500, lambda: get("/live")),
    "requests in a row, none read": lambda c: c.flood(
        100, lambda: get("/v1/models"), read=False, at_once=500),
    "connections that open and close": lambda c: c.flood(
        50, lambda: get("/live"), then=leave),
    "connections that reset": lambda c: c.flood(50, lambda: get("/live"), then=reset),
    "2,500 idle connections": lambda c: c.hold(2500),
    "heads that drip": lambda c: c.hold(500, b"GET / HTTP/1.1\r\nx-a: ", b"x"),
    "bodies that drip": lambda c: c.hold(
        500, f"POST /v1/completions HTTP/1.1\r\n{JSON_FIELDS}Content-Length: 1000000\r\n\r\n"
        .encode(), b"x"),
    "bodies that stop at 100 KB": lambda c: c.hold(
        500, f"POST /v1/completions HTTP/1.1\r\n{JSON_FIELDS}Content-Length: 30000000\r\n\r\n"
        .encode() + b"x" * 100_000),
    "bodies in chunks of one byte": lambda c: c.hold(
        200, f"POST /v1/completions HTTP/1.1\r\n{JSON_FIELDS}Transfer-Encoding: chunked\r\n\r\n"
        .encode(), b"1\r\nx\r\n" * 100, pause=0.1),
    "100-continue, and no body": lambda c: c.hold(
        500, f"POST /v1/completions HTTP/1.1\r\n{JSON_FIELDS}Expect: 100-continue\r\n"
        "Content-Length: 1000\r\n\r\n".encode()),
    "prompts of 30 MB": lambda c: c.flood(4, lambda: post("/v1/completions", SPACES)),
    "prompts of 30 MB, then gone": lambda c: c.flood(
        4, lambda: post("/v1/completions", SPACES), then=leave),
    "chats of 30 MB": lambda c: c.flood(4, lambda: post("/v1/chat/completions", LETTERS)),
    "prompts of 4 million ids": lambda c: c.flood(4, lambda: post("/v1/completions", MANY_IDS)),
    "190,000 fields": lambda c: c.flood(4, lambda: post("/v1/completions", MANY_FIELDS)),
    "brackets without end": lambda c: c.flood(20, lambda: post("/v1/completions", DEEP)),
    "unknown fields, new ones each time": lambda c: c.flood(50, unknown_fields),
    "64 prompts, 16 choices each": lambda c: c.flood(
        20, lambda: completions(prompt=["a"] * 64, n=16, max_tokens=1000, stream=True)),
    "long streams, 500 connections": lambda c: c.flood(
        500, lambda: completions(max_tokens=10000, stream=True)),
    "16 choices with log-probabilities": lambda c: c.flood(
        50, lambda: chat(n=16, max_tokens=2000, stream=True, logprobs=True, top_logprobs=20)),
    "prompts with log-probabilities, streams": lambda c: c.flood(
        16, lambda: completions(prompt=FITS, echo=True, logprobs=20, max_tokens=1, stream=True)),
    "prompts with log-probabilities, whole": lambda c: c.flood(
        16, lambda: completions(prompt=FITS, echo=True, logprobs=20, max_tokens=1)),
    "prompts that fill the context": lambda c: c.flood(
        64, lambda: completions(prompt=[random.randrange(3, 4000)] * 16000, max_tokens=1)),
    "answers that nobody reads": lambda c: c.stall(
        64, lambda: completions(max_tokens=15000, stream=True)),
    "answers read byte by byte": lambda c: c.stall(
        64, lambda: completions(max_tokens=15000, stream=True), pause=0.1),
    "streams that are left": lambda c: c.flood(
        50, lambda: completions(max_tokens=1000, stream=True), close=True),
    "requests that are left at once": lambda c: c.flood(
        50, lambda: completions(max_tokens=1000), then=leave),
    "requests that are half closed": lambda c: c.flood(
        50, lambda: completions(max_tokens=1000, stream=True), then=half_close),
    "100 completions in a row": lambda c: c.flood(
        20, lambda: completions(max_tokens=1), at_once=100),
    "tiny completions": lambda c: c.flood(200, lambda: completions(max_tokens=1)),
    "all stops and biases": lambda c: c.flood(32, lambda: completions(
        max_tokens=500, n=16, stop=["\u00e9" * 500 + str(i) for i in range(16)],
        logit_bias={str(i): 1 for i in range(5, 1029)})),
    "/metrics, 200 connections": lambda c: c.flood(200, lambda: get("/metrics")),
    "/openapi.json, none read": lambda c: c.flood(
        200, lambda: get("/openapi.json"), read=False, at_once=50),
    "/tokenize of spaces": lambda c: c.flood(50, lambda: post("/tokenize", SOME_SPACES)),
    "/tokenize, then gone": lambda c: c.flood(
        50, lambda: post("/tokenize", SOME_SPACES), then=leave),
    "/detokenize of 60,000 ids": lambda c: c.flood(
        20, lambda: post("/detokenize", {"tokens": [5] * 60_000})),
    "/render of full prompts": lambda c: c.flood(
        20, lambda: post("/render", {"prompt": [FITS] * 64})),
    "names that are not ours": lambda c: c.flood(
        200, lambda: get("/v1/models").replace(b"localhost", b"evil.test")),
    "bytes that are no HTTP": lambda c: c.flood(
        100, lambda: b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 50 + b"\r\n\r\n"),
    "heads without end": lambda c: c.flood(
        100, lambda: b"GET /live HTTP/1.1\r\n" + b"x-a: 1\r\n" * 10_000),
    "refused bodies that go on": lambda c: c.flood(20, lambda: (
        f"POST /v1/completions HTTP/1.1\r\n{JSON_FIELDS}Content-Length: 99999999\r\n\r\n"
        .encode() + b"x" * 30_000_000)),
}
