"""A halfbyte server in a process of its own, for tests."""
import json
import os
import pathlib
import re
import signal
import subprocess
import threading
import urllib.error
import urllib.request
from time import monotonic, sleep

import openai

PROGRAM = os.environ["HALFBYTE_PROGRAM"]
SOURCE = pathlib.Path(os.environ["HALFBYTE_SOURCE"])
WORK = pathlib.Path(os.environ["HALFBYTE_WORK"])
EXAMPLES = int(os.environ["HALFBYTE_EXAMPLES"])
MODEL = SOURCE / "models" / "tiny-v4-nvfp4"
PATIENCE = 120  # seconds, against hanging; nothing here takes a tenth of it

# What the fake executor answers: every printable character is followed by the next one.
FAKE = ("--load-format", "fake")


def until(condition, what):
    """Waits until condition() is true and returns what it gave."""
    end = monotonic() + PATIENCE
    while monotonic() < end:
        result = condition()
        if result:
            return result
        sleep(0.01)
    raise AssertionError(f"never: {what}")


class Server:
    """Started with `flags`; ready when made, unless `wait` is false.

    `stderr`: instead of a file.
    """

    count = 0

    def __init__(self, *flags, model=MODEL, env=None, wait=True, preexec_fn=None, stderr=None):
        Server.count += 1
        self.log_path = WORK / f"server-{Server.count}.log"
        self.log = self.log_path.open("w", encoding="utf-8")
        self.process = subprocess.Popen(
            [PROGRAM, "serve", str(model), "--port", "0", *map(str, flags)],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=self.log if stderr is None else stderr, text=True,
            env=os.environ | (env or {}), preexec_fn=preexec_fn)
        self.stdout = []
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()
        if wait:
            until(lambda: self.stdout or self.process.poll() is not None, "ready")
            assert self.stdout, f"exit {self.process.returncode}: {self.log_text()}"
            self.url = self.stdout[0].split()[2]

    def _read(self):
        for line in self.process.stdout:
            self.stdout.append(line.rstrip("\n"))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.reader.join()
        self.process.stdout.close()
        self.log.close()

    @property
    def port(self):
        return int(self.url.rsplit(":", 1)[1])

    def log_text(self):
        self.log.flush()
        return self.log_path.read_text(encoding="utf-8", errors="replace")

    def port_from_log(self):
        """Where it listens while it loads: the port is open before the line on stdout."""
        found = until(lambda: re.search(r"http://127\.0\.0\.1:(\d+)", self.log_text()),
                      "the log names the port")
        self.url = found.group(0)
        return self.url

    def signal(self, number=signal.SIGTERM):
        self.process.send_signal(number)

    def exit_code(self):
        return self.process.wait(timeout=PATIENCE)

    def client(self, **options):
        settings = {"base_url": self.url + "/v1", "api_key": "none", "max_retries": 0,
                    "timeout": PATIENCE}
        return openai.OpenAI(**settings | options)

    def request(self, path, body=None, headers=None, method=None):
        """(status, headers, body as text)"""
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        fields = {"Content-Type": "application/json"} if data is not None else {}
        request = urllib.request.Request(self.url + path, data=data,
                                         headers=fields | (headers or {}), method=method)
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
                return answer.status, answer.headers, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.headers, error.read().decode()

    def json(self, path, body=None, **options):
        status, _, text = self.request(path, body, **options)
        assert status == 200, text
        return json.loads(text)

    def metric(self, name, **labels):
        """The sum of the samples of this name that have these labels."""
        total = 0.0
        for line in self.request("/metrics")[2].splitlines():
            match = re.fullmatch(r"([^{ ]+)(?:\{(.*)\})? (\S+)", line)
            if match and match.group(1) == name and all(
                    f'{key}="{value}"' in (match.group(2) or "") for key, value in labels.items()):
                total += float(match.group(3))
        return total

    def running(self):
        return self.metric("halfbyte:num_requests_running")

    def until_idle(self):
        until(lambda: self.running() + self.metric("halfbyte:num_requests_waiting") == 0, "idle")
        until(lambda: self.metric("halfbyte:kv_cache_usage_perc") == 0, "no page in use")
        assert self.metric("halfbyte:pool_used_pages", pool="slot") == 0
