"""schemathesis tries every route of /openapi.json: no 5xx, every answer as its schema says."""
import pathlib
import subprocess
import sys

from served import EXAMPLES, FAKE, WORK, Server

CHECKS = ("not_a_server_error", "status_code_conformance", "content_type_conformance",
          "response_headers_conformance", "response_schema_conformance", "unsupported_method",
          "allow_header_conformance", "negative_data_rejection")
# Coverage tries values of each field in turn, which takes most of the time: where many examples are
# wanted, not beside a sanitizer.
PHASES = "examples,coverage,fuzzing" if EXAMPLES >= 25 else "examples,fuzzing"


def test_every_route_answers_as_its_schema_says():
    with Server(*FAKE, "--max-model-len", 512, "--max-num-seqs", 32) as server:
        report = subprocess.run(
            [str(pathlib.Path(sys.executable).parent / "schemathesis"), "run",
             server.url + "/openapi.json", "--checks", ",".join(CHECKS), "--phases",
             PHASES, "--max-examples", str(EXAMPLES), "--seed", "1",
             "--continue-on-failure", "--no-color", "--generation-database", "none",
             "--suppress-health-check", "all"],
            capture_output=True, text=True, check=False, cwd=WORK)
        assert report.returncode == 0, report.stdout[-8000:] + report.stderr[-2000:]
        server.until_idle()
        assert server.metric("http_requests_total") > 10 * EXAMPLES
        for route in ("/v1/completions", "/v1/chat/completions"):
            assert server.metric("http_requests_total", handler=route, status="200") > EXAMPLES / 4
        assert server.process.poll() is None
