"""What `halfbyte serve` writes to its log. (States, signals, exit codes: tests/serve.)

    serve_test.py PROGRAM REPOSITORY
"""
import hashlib
import http.client
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import unittest

PROGRAM, REPOSITORY = sys.argv[1:3]
MODEL = pathlib.Path(REPOSITORY) / "models/tiny-v4-nvfp4"
DEADLINE = 60  # of anything; a machine may be slow


class Server:
    """A running server on a port of its own, its stdout and stderr read as they come."""

    def __init__(self, *flags, env=None, model=MODEL):
        command = [PROGRAM, "serve", str(model), "--load-format", "fake", "--port", "0", *flags]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**os.environ, **(env or {})})
        self.lines, self.changed = [], threading.Condition()
        self.threads = [threading.Thread(target=self.read, args=(pipe,), daemon=True)
                        for pipe in (self.process.stdout, self.process.stderr)]
        for thread in self.threads:
            thread.start()
        self.port = int(re.search(r"http://[0-9.]+:(\d+)",
                                  self.wait_for("listening on http://")).group(1))

    def read(self, pipe):
        for line in pipe:
            with self.changed:
                self.lines.append(line.rstrip("\n"))
                self.changed.notify_all()

    def wait_for(self, text):
        """The first line with the text in it, when it is there."""
        def found():
            return next((line for line in self.lines if text in line), None)
        with self.changed:
            if not self.changed.wait_for(lambda: found() or self.process.poll() is not None,
                                         DEADLINE) or not found():
                raise AssertionError(f"no line with {text!r} in {self.lines}")
            return found()

    def fetch(self, method, path, body=None, headers=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=DEADLINE)
        connection.request(method, path, body, headers or {})
        answer = connection.getresponse()
        self.answer = answer.read()
        connection.close()
        return answer.status

    def stop(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for thread in self.threads:
            thread.join(DEADLINE)
        self.process.stdout.close()
        self.process.stderr.close()


class ServeLogTest(unittest.TestCase):
    def serve(self, *flags, **options):
        server = Server(*flags, **options)
        self.addCleanup(server.stop)
        server.wait_for("halfbyte ready ")
        return server

    def complete(self, server, key=""):
        body = json.dumps({"prompt": "confidential", "max_tokens": 3, "glitter": 1})
        return server.fetch("POST", "/v1/completions", body, {
            "Content-Type": "application/json", "x-request-id": "mine", "x-api-key": key})

    def test_a_request_is_one_line_without_texts_and_keys(self):
        server = self.serve("--log-format", "json", "--log-level", "debug",
                            env={"HALFBYTE_API_KEY": "hush"})
        self.assertEqual(self.complete(server, "hush"), 200)
        line = json.loads(server.wait_for("request id=mine client=127.0.0.1:"))
        self.assertRegex(line["message"], r" route=/v1/completions status=200 finish=length "
                                          r"prompt=\d+ cached=0 output=3 queue_ms=\d+\.\d "
                                          r"ttft_ms=\d+\.\d total_ms=\d+\.\d preemptions=0$")
        self.assertEqual(line["level"], "info")
        self.assertFalse([line for line in server.lines if "confid" in line or "hush" in line])
        self.assertTrue([line for line in server.lines if "glitter" in line])

    def test_prompts_are_logged_only_if_asked_for(self):
        server = self.serve("--log-prompts")
        self.complete(server)
        server.wait_for("confidential")

    def test_sigusr1_tells_the_state(self):
        server = self.serve()
        server.process.send_signal(signal.SIGUSR1)
        self.assertIn("context blocks 0 of", server.wait_for("SIGUSR1: "))

    def test_wording_is_the_checkpoints_and_its_source_is_named(self):
        encoder = (b'REASONING_EFFORT_PROMPTS = {"low": "", '
                   b'"high": "Dig.\\n", "max": ("De" "ep.")}\n')
        with tempfile.TemporaryDirectory() as folder:
            model = pathlib.Path(folder)
            shutil.copy(MODEL / "tokenizer.json", model)
            (model / "encoding").mkdir()
            (model / "encoding/encoding_dsv4.py").write_bytes(encoder)
            server = self.serve(model=model)
        line = server.wait_for("chat wording: official profile, from ")
        self.assertIn("encoding_dsv4.py", line)
        self.assertIn(hashlib.sha256(encoder).hexdigest(), line)
        for effort, text in ("low", ""), ("high", "Dig.\n"), ("max", "Deep."):
            body = json.dumps({"messages": [{"role": "user", "content": "Hi"}],
                               "reasoning_effort": effort})
            status = server.fetch("POST", "/render", body, {"Content-Type": "application/json"})
            self.assertEqual(status, 200)
            self.assertEqual(json.loads(server.answer)["prompt"],
                             f"<｜begin▁of▁sentence｜>{text}<｜User｜>Hi<｜Assistant｜><think>")

    def test_warns_when_anybody_may_come(self):
        server = Server("--host", "0.0.0.0")
        self.addCleanup(server.stop)
        server.wait_for("can be reached from other machines")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
