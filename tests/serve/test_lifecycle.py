"""From the first byte to the exit code: loading, keys, drain, failures."""
import concurrent.futures
import json
import os
import signal
import socket
import subprocess

import openai
import pytest

from served import FAKE, MODEL, PATIENCE, PROGRAM, Server, until

SLOW = {"prompt": "a", "max_tokens": 800, "ignore_eos": True, "stream": True}


def stream_of(server, **fields):
    """The data lines of a stream, to its end."""
    status, _, text = server.request("/v1/completions", SLOW | fields)
    assert status == 200
    return [line[6:] for line in text.splitlines() if line.startswith("data: ")]


def test_a_port_in_use_is_exit_5():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = subprocess.run([PROGRAM, "serve", str(MODEL), *FAKE, "--port", str(port)],
                              capture_output=True, text=True, check=False, timeout=PATIENCE)
    assert done.returncode == 5 and str(port) in done.stderr and done.stdout == ""


def test_flags_come_from_the_environment_and_a_file(tmp_path):
    config = tmp_path / "serve.toml"
    config.write_text('max-num-seqs = 7\nserved-model-name = ["a", "b"]\n')
    line = [PROGRAM, "serve", str(MODEL), "--config", str(config), "--print-config"]
    env = {"HALFBYTE_MAX_NUM_SEQS": "9", "HALFBYTE_MAX_MODEL_LEN": "2048", "PATH": ""}

    def config_of(*flags):
        done = subprocess.run([*line, *flags], capture_output=True, text=True, check=True, env=env)
        return json.loads(done.stdout)

    found = config_of()
    assert (found["max-num-seqs"], found["max-model-len"]) == (9, 2048)
    assert found["served-model-name"] == ["a", "b"]
    assert config_of("--max-num-seqs", "11")["max-num-seqs"] == 11


def test_while_it_loads_it_answers_but_does_not_generate():
    with Server(*FAKE, "--fake-load-time", 4, wait=False) as server:
        server.port_from_log()
        status, _, text = server.request("/ready")
        state = json.loads(text)
        assert status == 503 and state["status"] == "loading" and 0 <= state["progress"] <= 1
        assert server.request("/live")[0] == 200
        assert server.request("/")[0] == 200
        assert server.json("/v1/models")["data"][0]["id"]
        assert 0 <= server.metric("halfbyte:load_progress_ratio") < 1
        with pytest.raises(openai.InternalServerError) as caught:
            server.client().completions.create(model=None, prompt="x")
        assert caught.value.status_code == 503 and caught.value.code == "model_loading"
        until(lambda: server.stdout, "ready")
        assert server.stdout == ["halfbyte ready " + server.url]
        assert server.json("/ready") == {"status": "ready"}
        server.signal(signal.SIGINT)
        assert server.exit_code() == 0


def test_keys(tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("first\n")
    with Server(*FAKE, "--api-key-file", keys, env={"HALFBYTE_API_KEY": "second"}) as server:
        for route in ("/live", "/ready", "/health"):
            assert server.request(route)[0] == 200
        for route in ("/metrics", "/openapi.json", "/", "/v1/models"):
            status, fields, text = server.request(route)
            assert status == 401 and "WWW-Authenticate" in fields, route
            assert json.loads(text)["error"]["code"] == "invalid_api_key"
        with pytest.raises(openai.AuthenticationError):
            server.client(api_key="third").models.list()
        for key in ("first", "second"):
            assert server.client(api_key=key).models.list().data
            assert server.request("/metrics", headers={"x-api-key": key})[0] == 200
        keys.write_text("third\n")
        server.signal(signal.SIGHUP)
        until(lambda: server.request("/metrics", headers={"x-api-key": "third"})[0] == 200,
              "the new key counts")
        assert server.request("/metrics", headers={"x-api-key": "first"})[0] == 401
        assert "third" not in server.log_text() and "second" not in server.log_text()


def test_drain_lets_streams_end_and_takes_no_new_ones():
    with Server(*FAKE, "--fake-step-time", 0.005, "--max-num-seqs", 64) as server:
        with concurrent.futures.ThreadPoolExecutor(32) as pool:
            streams = [pool.submit(stream_of, server) for _ in range(32)]
            until(lambda: server.running() == 32, "running")
            server.signal()
            status, _, text = until(
                lambda: (lambda answer: answer if answer[0] == 503 else None)(
                    server.request("/ready")), "draining")
            assert json.loads(text)["status"] == "draining"
            status, fields, text = server.request("/v1/completions", {"prompt": "x"})
            assert status == 503 and json.loads(text)["error"]["code"] == "draining"
            assert int(fields["Retry-After"]) >= 1
            assert server.request("/live")[0] == 200
            for stream in streams:
                *chunks, done = stream.result()
                assert done == "[DONE]"
                assert json.loads(chunks[-1])["choices"][0]["finish_reason"] == "length"
        assert server.exit_code() == 0


def test_a_drain_that_takes_too_long_is_cut_and_exit_6():
    with Server(*FAKE, "--fake-step-time", 0.05, "--shutdown-timeout", 0.3) as server:
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            streams = [pool.submit(stream_of, server) for _ in range(8)]
            until(lambda: server.running() == 8, "running")
            server.signal()
            for stream in streams:
                *_, error, done = stream.result()
                assert done == "[DONE]"
                assert json.loads(error)["error"]["code"] == "draining"
        assert server.exit_code() == 6


def test_a_second_signal_ends_at_once():
    with Server(*FAKE, "--fake-step-time", 0.05, "--shutdown-timeout", 600) as server:
        with socket.create_connection(("127.0.0.1", server.port)) as connection:
            body = json.dumps(SLOW | {"max_tokens": 4000}).encode()
            connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: "
                               b"application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            until(lambda: server.running() == 1, "running")
            server.signal()
            until(lambda: server.request("/ready")[0] == 503, "draining")
            server.signal()
            assert server.exit_code() == 6


def test_an_engine_that_fails_ends_its_requests_and_is_exit_7():
    with Server(*FAKE, "--fake-step-time", 0.005, "--fake-fail-at-step", 50) as server:
        *_, error, done = stream_of(server)
        assert done == "[DONE]" and json.loads(error)["error"]["code"] == "engine_dead"
        assert server.exit_code() == 7


def test_a_log_that_nobody_reads_stops_nothing():
    read_end, write_end = os.pipe()  # never read, as by a supervisor that hangs
    with Server(*FAKE, "--log-prompts", stderr=write_end) as server:
        os.close(write_end)
        body = {"prompt": "x", "max_tokens": 1, "user": "x" * 100_000}
        for _ in range(60):  # more than the pipe and the queue of lines hold
            server.json("/v1/completions", body)
        assert server.request("/live")[0] == 200
        assert server.metric("halfbyte:log_lines_dropped_total") > 0
        server.signal(signal.SIGTERM)
        assert server.exit_code() == 0
    os.close(read_end)


@pytest.mark.parametrize("sink", ["/dev/full", "closed pipe"])
def test_a_log_that_cannot_be_written_stops_nothing(sink):
    if sink == "/dev/full":
        target = os.open(sink, os.O_WRONLY)
    else:
        read_end, target = os.pipe()
        os.close(read_end)
    with Server(*FAKE, stderr=target) as server:
        os.close(target)
        server.json("/v1/completions", {"prompt": "x", "max_tokens": 1})
        until(lambda: server.metric("halfbyte:log_lines_dropped_total") > 0, "counted")
        server.signal(signal.SIGTERM)
        assert server.exit_code() == 0


@pytest.mark.parametrize("abstract", [False, True])
def test_a_service_manager_is_told_when_it_is_ready_and_when_it_stops(tmp_path, abstract):
    name = f"@halfbyte-{os.getpid()}" if abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(name.replace("@", "\0"))
        manager.settimeout(PATIENCE)
        with Server(*FAKE, env={"NOTIFY_SOCKET": name}) as server:
            assert manager.recv(100) == b"READY=1"
            server.signal(signal.SIGTERM)
            assert manager.recv(100) == b"STOPPING=1"
            assert server.exit_code() == 0


def test_a_service_manager_that_does_not_listen_is_no_trouble(tmp_path):
    for name in (str(tmp_path / "nobody"), "x" * 200, ""):
        with Server(*FAKE, env={"NOTIFY_SOCKET": name}) as server:
            server.signal(signal.SIGTERM)
            assert server.exit_code() == 0
