"""Strange names and pages, keys, files that are somebody's, limits of the process."""
import json
import re
import resource
import shutil
import signal
import socket
import subprocess

import pytest

from served import FAKE, MODEL, PATIENCE, PROGRAM, Server, until

CHAT = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}


def test_a_page_of_a_stranger_gets_nothing(fake):
    evil = {"Host": "evil.test:8000", "Origin": "http://evil.test:8000"}
    status, fields, text = fake.request("/v1/chat/completions", CHAT, evil)
    assert status == 403 and json.loads(text)["error"]["code"] == "host_not_allowed"
    assert "--allowed-hosts evil.test" in text
    assert not [name for name in fields if name.lower().startswith("access-control-")]
    for path in ("/", "/metrics", "/v1/models"):
        assert fake.request(path, headers=evil)[0] == 403
    # Another origin that knows the address cannot send JSON without asking, and is not let in.
    form = {"Origin": "http://evil.test", "Content-Type": "text/plain"}
    assert fake.request("/v1/chat/completions", json.dumps(CHAT).encode(), form)[0] == 415
    status, fields, _ = fake.request("/v1/chat/completions", headers=form | {
        "Access-Control-Request-Method": "POST"}, method="OPTIONS")
    assert not [name for name in fields if name.lower().startswith("access-control-")]


def test_names_and_origins_that_are_allowed(tmp_path):
    with Server(*FAKE, "--allowed-hosts", ".box.example", "--allowed-origins", "http://app.test",
                "--uds", tmp_path / "socket", wait=False) as server:
        until(lambda: server.stdout, "ready")
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(tmp_path / "socket"))
            connection.sendall(b"GET /v1/models HTTP/1.1\r\nHost: anything.test\r\n"
                               b"Origin: http://app.test\r\nConnection: close\r\n\r\n")
            answer = b""
            while chunk := connection.recv(65536):
                answer += chunk
        assert answer.startswith(b"HTTP/1.1 200 ")
        assert b"\r\nAccess-Control-Allow-Origin: http://app.test\r\n" in answer
        server.signal()
        assert server.exit_code() == 0
    assert not (tmp_path / "socket").exists()


def test_the_log_names_who_brought_a_wrong_key_and_a_right_one_is_not_locked_out():
    with Server(*FAKE, "--api-key", "right") as server:
        for _ in range(12):  # the last ones are answered late
            assert server.request("/v1/models", headers={"x-api-key": "wrong"})[0] == 401
        assert server.request("/v1/models", headers={"x-api-key": "right"})[0] == 200
        lines = re.findall(r"key refused: .* client=127\.0\.0\.1:\d+ .*key=wrong",
                           server.log_text())
        assert 10 <= len(lines) <= 12
        metrics = server.request("/metrics", headers={"x-api-key": "right"})[2]
        assert 'reason="wrong"} 12' in metrics
        assert "wrong\"" not in server.log_text() and "key=right" not in server.log_text()


@pytest.mark.parametrize("change", ["cut", "append", "rename"])
def test_a_model_whose_files_change(tmp_path, change):
    model = tmp_path / "model"
    shutil.copytree(MODEL, model)
    with Server("--kv-cache-memory-bytes", 50_000_000, model=model) as server:
        for file in sorted(model.glob("*.safetensors")):
            if change == "cut":
                file.write_bytes(b"")
            elif change == "append":
                with file.open("ab") as out:
                    out.write(b"x")
            else:
                shutil.copy(file, model / "new")
                (model / "new").rename(file)
        status, _, text = server.request("/v1/chat/completions", CHAT)
        if change == "rename":
            assert status == 200
            server.signal()
            assert server.exit_code() == 0
            return
        assert status == 503 and json.loads(text)["error"]["code"] == "engine_dead"
        assert str(model) not in text  # clients learn no paths
        assert server.exit_code() == 7
        assert ".safetensors: was written to or cut" in server.log_text()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGABRT, signal.SIGSEGV])
def test_its_socket_goes_with_it(tmp_path, number):
    with Server(*FAKE, "--uds", tmp_path / "socket", wait=False) as server:
        until(lambda: server.stdout, "ready")
        server.signal(number)
        assert server.exit_code() == (0 if number == signal.SIGTERM else -number)
    assert not (tmp_path / "socket").exists()


def test_with_few_open_files_it_serves_few_connections_and_stands():
    def few():
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))

    with Server(*FAKE, preexec_fn=few) as server:
        assert "--max-connections 4096 is lowered to 16" in server.log_text()
        crowd = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(150)]
        until(lambda: "cannot accept" in server.log_text(), "all files are in use")
        for connection in crowd:
            connection.close()
        until(lambda: server.request("/live")[0] == 200, "it serves again")
        assert server.json("/v1/chat/completions", CHAT)
        server.signal()
        assert server.exit_code() == 0


def test_limits_that_leave_nothing_are_told_with_their_exit_codes():
    def ends(*flags, **limits):
        def limit():
            for name, value in limits.items():
                resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (value, value))
        done = subprocess.run([PROGRAM, "serve", str(MODEL), *FAKE, "--port", "0", *flags],
                              capture_output=True, text=True, check=False, timeout=PATIENCE,
                              preexec_fn=limit)
        return done.returncode, done.stderr.splitlines()[-1]

    code, last = ends(NOFILE=20)
    assert code == 5 and "ulimit -n" in last
    code, last = ends("--threads", "512", AS=1 << 30)
    assert code == 4 and "threads are needed" in last
