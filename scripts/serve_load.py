#!/usr/bin/env python3
"""The loads that the server has to stand (docs/serving.md), each beside what it should reach.

    scripts/serve_load.py [--program build/release/bin/halfbyte] [--out bench/results/serve]
                          [--soak SECONDS] [CASE...]

Without names it runs every case but the soak; `soak` runs only if named. For each case it writes
OUT/DATE-CASE.json: machine, commit, command, figures and targets. A missed target is printed and
written down. Exits 1 if a token was lost, a request hung or a page was left behind. Everything
stays on this machine (127.0.0.1) and ends by itself.
"""
import argparse
import datetime
import http.client
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
MODEL = ROOT / "models" / "tiny-v4-nvfp4"

# name: (flags of the server, flags of the bench, {figure: most it should be})
FAKE = "--load-format fake --max-model-len 16384 --max-queued-requests 256"
CASES = {
    "streams-256-10ms": (
        f"{FAKE} --max-num-seqs 256 --fake-step-time 0.01",
        "--concurrency 256 --requests 1024 --max-tokens 256 --probe-live",
        {"chunk_delay.p99_ms": 20, "live.p99_ms": 20}),
    "streams-256-20ms": (
        f"{FAKE} --max-num-seqs 256 --fake-step-time 0.02",
        "--concurrency 256 --requests 256 --max-tokens 256 --probe-live",
        {"chunk_delay.p99_ms": 15, "chunk_delay.max_ms": 100, "live.p99_ms": 20}),
    "streams-256-5ms": (
        f"{FAKE} --max-num-seqs 256 --fake-step-time 0.005",
        "--concurrency 256 --requests 1024 --max-tokens 256 --prompt-tokens 8",
        {"seconds": 1.25 * 4 * 256 * 0.005, "server.cpu_us_per_token": 20, "growth_mib": 64}),
    "streams-1024-50ms": (
        f"{FAKE} --max-num-seqs 1024 --max-num-batched-tokens 2048 --fake-step-time 0.05",
        "--concurrency 1024 --requests 1024 --max-tokens 128",
        {"chunk_delay.p99_ms": 40}),
    "overload": (
        f"{FAKE} --max-num-seqs 64 --fake-step-time 0.01",
        "--concurrency 64 --requests 64 --max-tokens 256 --burst 1936",
        {"refusal.p99_ms": 100, "chunk_delay.p99_ms": 20}),
    "leave-1000": (
        f"{FAKE} --max-num-seqs 256 --fake-step-time 0.01",
        "--concurrency 256 --requests 1000 --max-tokens 256 --disconnect-fraction 1", {}),
    "leave-half": (
        f"{FAKE} --max-num-seqs 256 --fake-step-time 0.01",
        "--concurrency 256 --requests 256 --max-tokens 256 --disconnect-fraction 0.5",
        {"chunk_delay.p99_ms": 20}),
    "leave-128-together": (
        f"{FAKE} --max-num-seqs 256 --fake-step-time 0.01",
        "--concurrency 256 --requests 256 --max-tokens 384 --leave-together 128",
        {"left_released_ms": 40, "chunk_delay.p99_ms": 20}),
    "stalled-16": (
        f"{FAKE} --max-num-seqs 80 --fake-step-time 0.002 --kv-cache-memory-bytes 2000000000",
        "--concurrency 48 --requests 48 --max-tokens 12000 --prompts 1 --stalled-clients 16",
        {"chunk_delay.p99_ms": 15}),
    "model": (
        "--max-num-seqs 32", "--concurrency 1,8,32 --requests 64 --max-tokens 128", {}),
    "soak": (
        f"{FAKE} --max-num-seqs 256 --fake-step-time 0.01",
        "--concurrency 256 --max-tokens 256 --disconnect-fraction 0.1 --malformed-fraction 0.05",
        {"chunk_delay.p99_ms": 20, "mib_per_10000_requests": 1, "open_files_growth": 0}),
}


def machine():
    text = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8")
    name = re.search(r"model name\s*: (.*)", text)
    return f"{name.group(1) if name else 'unknown'}, {os.cpu_count()} processors"


def commit():
    return subprocess.run(["git", "-C", str(ROOT), "describe", "--always", "--dirty"],
                          capture_output=True, text=True, check=False).stdout.strip()


def derived(load):
    """Figures that targets name and the bench does not print."""
    server, samples = load["server"], load["server"]["samples"]
    growth_mb = server["resident_mb_most"] - server["resident_mb_before"]
    load["growth_mib"] = round(growth_mb / 1.048576, 3)
    warm = samples[len(samples) // 4:]  # the first quarter warms up
    if len(warm) > 3:
        grown = (warm[-1]["resident_mb"] - warm[0]["resident_mb"]) / 1.048576
        part = (warm[-1]["s"] - warm[0]["s"]) / load["seconds"]
        requests = load["requests"]["started"] * part
        load["mib_per_10000_requests"] = round(grown / requests * 10000, 3)
        load["open_files_growth"] = max(0, warm[-1]["open_files"] - warm[0]["open_files"])


def figure(load, path):
    value = load
    for key in path.split("."):
        value = value.get(key, {}) if isinstance(value, dict) else {}
    return None if value == {} else value


def run_case(arguments, name):
    server_flags, bench_flags, targets = CASES[name]
    if name == "soak":  # each client needs 2.56 s for a whole answer, less for the others
        bench_flags += f" --requests {int(arguments.soak * 110)} --limit {arguments.soak + 600}"
    command = [str(arguments.program), "bench", "serve", str(MODEL.relative_to(ROOT)),
               "--server-flags", server_flags, *bench_flags.split(), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    if not done.stdout:
        print(f"{name}: {done.stderr.strip()}")
        return None, False
    report = json.loads(done.stdout)
    missed = []
    for load in report["loads"]:
        derived(load)
        for path, most in targets.items():
            value = figure(load, path)
            if value is None or value > most:
                missed.append(f"{path} {value}, should be at most {most}")
    if name == "model":
        first, second = (load["tokens_per_second"] for load in report["loads"][:2])
        report["speedup_8_over_1"] = round(second / first, 2)
        if second < 3 * first:
            missed.append(f"8 clients get {second / first:.2f} times the tokens/s of 1, not 3")
    command = [word if " " not in word else f"'{word}'" for word in command]
    ahead = "chrt -f 10 " if os.sched_getscheduler(0) == os.SCHED_FIFO else ""  # of other work
    report = {"command": ahead + " ".join(command).replace(str(arguments.program), "halfbyte"),
              "targets": targets, "missed": missed} | report
    return report, report["ok"]


class Stream(threading.Thread):
    """One stream through http.client; its last line says how it ended."""

    def __init__(self, port, tokens):
        super().__init__(daemon=True)
        self.port, self.tokens, self.last = port, tokens, []

    def run(self):
        connection = http.client.HTTPConnection("127.0.0.1", self.port)
        body = {"prompt": "a", "max_tokens": self.tokens, "stream": True}
        connection.request("POST", "/v1/completions", json.dumps(body),
                           {"Content-Type": "application/json"})
        for line in connection.getresponse():
            if line.strip():
                self.last = [*self.last[-1:], line.decode().strip()]


def run_sigterm(arguments, window):
    """64 streams of 5 s, SIGTERM in the middle; seconds to the end and what clients were told."""
    server = subprocess.Popen(
        [str(arguments.program), "serve", str(MODEL), "--port", "0", "--load-format", "fake",
         "--max-num-seqs", "64", "--fake-step-time", "0.01", "--shutdown-timeout", str(window),
         "--log-level", "error"], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    try:
        port = int(server.stdout.readline().rsplit(":", 1)[1])
        streams = [Stream(port, 500) for _ in range(64)]
        for stream in streams:
            stream.start()
        time.sleep(1.5)
        server.send_signal(signal.SIGTERM)
        begin = time.monotonic()
        code = server.wait(timeout=60)
        seconds = time.monotonic() - begin
        for stream in streams:
            stream.join(10)
    finally:
        server.kill()
        server.wait()
    whole = sum('"finish_reason":"length"' in stream.last[0] for stream in streams)
    told = sum('"draining"' in stream.last[0] for stream in streams)
    done = sum(stream.last[1:] == ["data: [DONE]"] for stream in streams)
    return {"window_seconds": window, "exit_code": code, "seconds_after_sigterm": round(seconds, 3),
            "streams_whole": whole, "streams_told_draining": told, "streams_ended_properly": done}


def run_drain(arguments):
    long, short = run_sigterm(arguments, 30), run_sigterm(arguments, 1)
    missed = []
    if (long["exit_code"], long["streams_whole"]) != (0, 64):
        missed.append(f"a long window: {long}")
    if (short["exit_code"], short["streams_told_draining"]) != (6, 64):
        missed.append(f"a short window: {short}")
    if short["seconds_after_sigterm"] > 2:
        missed.append(f"a window of 1 s took {short['seconds_after_sigterm']} s, should be 2")
    return {"command": "scripts/serve_load.py drain", "missed": missed, "loads": [long, short]}, \
        not missed


def run_wrk(arguments):
    """Requests per second of small routes; needs the package wrk."""
    if shutil.which("wrk") is None:
        print("routes: skipped, wrk is not installed")
        return None, True
    server = subprocess.Popen(
        [str(arguments.program), "serve", str(MODEL), "--port", "0", "--load-format", "fake",
         "--log-level", "error"], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    post = pathlib.Path(arguments.out) / "tokenize.lua"
    loads, missed = [], []
    try:
        url = server.stdout.readline().split()[2]
        post.write_text("wrk.method = 'POST'\nwrk.headers['Content-Type'] = 'application/json'\n"
                        "wrk.body = '{\"prompt\": \"' .. string.rep('The small house. ', 600) "
                        ".. '\"}'\n")
        for route, least, script in (("/live", 20000, []), ("/v1/models", 10000, []),
                                     ("/tokenize", 300, ["-s", str(post)])):
            text = subprocess.run(["wrk", "-t1", "-c16", "-d5s", *script, url + route],
                                  capture_output=True, text=True, check=False).stdout
            rate = float(re.search(r"Requests/sec:\s+([\d.]+)", text).group(1))
            errors = re.findall(r"(?:Non-2xx|Socket errors).*", text)
            loads.append({"route": route, "requests_per_second": rate, "errors": errors})
            if rate < least or errors:
                missed.append(f"{route}: {rate}/s, should be {least}; {errors}")
    finally:
        server.terminate()
        server.wait()
        post.unlink(missing_ok=True)
    return {"command": "scripts/serve_load.py routes (wrk -t1 -c16 -d5s)", "missed": missed,
            "loads": loads}, not any(load["errors"] for load in loads)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", type=pathlib.Path, default=ROOT / "build/release/bin/halfbyte")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "bench/results/serve")
    parser.add_argument("--soak", type=int, default=600, help="seconds of the case soak")
    names = [*CASES, "drain", "routes"]
    parser.add_argument("cases", nargs="*", metavar="CASE", help=", ".join(names))
    arguments = parser.parse_args()
    if unknown := set(arguments.cases) - set(names):
        parser.error(f"no such case: {', '.join(sorted(unknown))}")
    arguments.program = arguments.program.resolve()
    arguments.out.mkdir(parents=True, exist_ok=True)
    good = True
    for name in arguments.cases or [name for name in names if name != "soak"]:
        runners = {"drain": run_drain, "routes": run_wrk}
        report, ok = runners[name](arguments) if name in runners else run_case(arguments, name)
        good = good and ok
        if report is None:
            continue
        today = datetime.date.today().isoformat()
        report = {"case": name, "date": today, "machine": machine(), "commit": commit()} | report
        path = arguments.out / f"{today}-{name}.json"
        path.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
        print(f"{name}: {'ok' if ok else 'FAILED'}, {path}")
        for text in report["missed"]:
            print(f"  missed: {text}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
