#!/usr/bin/env python3
"""Hostile clients beside polite ones (docs/serving.md), on the fake model.

    scripts/serve_hostile.py [--program ...] [--out bench/results/serve] [--seconds 10]
                             [table | chaos] [WORD...]

table: for each behaviour of scripts/hostile_clients.py a server on which 32 polite clients stream;
       who behaves so comes from another address, for ten seconds. Writes OUT/DATE-hostile.json and
       prints a row each: tokens that polite streams lost, the delay of their chunks, of /live.
       WORDs choose the behaviours whose names have one of them.
chaos: for --seconds (600) everything against one server, three behaviours at any time, which come
       and go; then nothing may be lost, leaked or unaccounted for. Writes OUT/DATE-chaos.json.

Exits 1 if a polite token was lost or the server ended or kept anything. Late chunks are told, not
an error: that depends on the machine.
"""
import argparse
import datetime
import http.client
import json
import multiprocessing
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import time

from hostile_clients import BEHAVIOURS, Crowd
from serve_load import MODEL, ROOT, commit, machine

SERVER = ["--port", "0", "--load-format", "fake", "--max-model-len", "16384", "--max-num-seqs",
          "64", "--fake-step-time", "0.01", "--log-level", "warning"]
POLITE = 32
MOST_DELAY_MS = 50
MOST_KEPT_MB = 64  # resident at the end: free pages of the heaps have gone back


class Server:
    def __init__(self, program):
        self.log = open("/tmp/serve_hostile.log", "w", encoding="utf-8")
        self.process = subprocess.Popen([str(program), "serve", str(MODEL), *SERVER],
                                        stdout=subprocess.PIPE, stderr=self.log, text=True)
        self.url = self.process.stdout.readline().split()[2]
        self.port = int(self.url.rsplit(":", 1)[1])

    def metrics(self):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request("GET", "/metrics")
        found = {}
        for line in connection.getresponse().read().decode().splitlines():
            match = re.fullmatch(r"([^{ #]+)(?:\{.*\})? (\S+)", line)
            if match:
                found[match.group(1)] = found.get(match.group(1), 0) + float(match.group(2))
        connection.close()
        return found

    def until_running(self, count):
        for _ in range(1000):
            if self.metrics()["halfbyte:num_requests_running"] >= count:
                return
            time.sleep(0.02)

    def until_idle(self, patience=120):
        end = time.monotonic() + patience
        while time.monotonic() < end:
            now = self.metrics()
            if now["halfbyte:num_requests_running"] + now["halfbyte:num_requests_waiting"] == 0:
                return now
            time.sleep(0.2)
        return self.metrics()

    def end(self):
        """The exit code."""
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(60)
        finally:
            self.process.kill()
            self.log.close()


def polite(arguments, url, seconds):
    """Starts the polite clients, who stop after about so long."""
    tokens = 200  # of 10 ms and more
    return subprocess.Popen(
        [str(arguments.program), "bench", "serve", "--url", url, "--concurrency", str(POLITE),
         "--requests", str(POLITE * max(1, int(seconds / (tokens * 0.011)))), "--max-tokens",
         str(tokens), "--prompts", "1", "--probe-live", "--json"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT)


def figures(bench):
    out, err = bench.communicate(timeout=600)
    if not out:
        return {"error": err.strip()}
    load = json.loads(out)["loads"][0]
    requests = load["requests"]
    return {"streams": requests["complete"], "tokens": load["tokens"], "faults": load["faults"],
            "first_faults": load.get("first_faults", []),
            "refused": requests["refused"], "stream_errors": load.get("stream_errors", {}),
            "lost": requests["started"] - requests["complete"],
            "first_token_p99_ms": load["first_token"]["p99_ms"],
            "chunk_p99_ms": load["chunk_delay"]["p99_ms"],
            "chunk_max_ms": load["chunk_delay"]["max_ms"],
            "live_p99_ms": load["live"]["p99_ms"], "live_max_ms": load["live"]["max_ms"]}


def good(row):
    return not row.get("error") and row["faults"] == 0 and row["lost"] == 0


def misbehave(name, port, address):
    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))  # whatever the server runs under
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    BEHAVIOURS[name](Crowd(port, address))


def start(name, port, address="127.0.0.2"):
    process = multiprocessing.Process(target=misbehave, args=(name, port, address), daemon=True)
    process.start()
    return process


def stop(process):
    process.terminate()
    process.join()


def run_table(arguments, names):
    rows = {}
    print(f"{'behaviour':44} {'lost':>5} {'chunk p99':>10} {'max':>9} {'/live p99':>10} "
          f"{'max':>9} {'first p99':>10}")
    for name in ["nobody", *names]:
        server = Server(arguments.program)
        try:
            bench = polite(arguments, server.url, arguments.seconds)
            server.until_running(POLITE)  # before that it asks for its answer alone
            hostile = start(name, server.port) if name != "nobody" else None
            time.sleep(arguments.seconds)
            if hostile is not None:
                stop(hostile)
            row = figures(bench)
            row["exit_code"] = server.end()
        finally:
            server.process.kill()
        rows[name] = row
        if row.get("error"):
            print(f"{name:44} {row['error']}", flush=True)
            continue
        late = max(row["chunk_p99_ms"], row["live_p99_ms"]) >= MOST_DELAY_MS
        print(f"{name:44} {row['lost'] + row['faults']:5} {row['chunk_p99_ms']:10.1f} "
              f"{row['chunk_max_ms']:9.1f} {row['live_p99_ms']:10.1f} {row['live_max_ms']:9.1f} "
              f"{row['first_token_p99_ms']:10.0f}{'  late' if late else ''}", flush=True)
    late = [name for name, row in rows.items()
            if not row.get("error") and
            max(row["chunk_p99_ms"], row["live_p99_ms"]) >= MOST_DELAY_MS]
    ok = all(good(row) and row["exit_code"] == 0 for row in rows.values())
    return {"behaviours": len(names), "late": late, "ok": ok, "rows": rows}, ok


def process_state(pid):
    status = pathlib.Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    return {"resident_mb": int(re.search(r"VmRSS:\s+(\d+)", status).group(1)) / 1024,
            "threads": int(re.search(r"Threads:\s+(\d+)", status).group(1)),
            "open_files": len(os.listdir(f"/proc/{pid}/fd"))}


def run_chaos(arguments, names):
    server = Server(arguments.program)
    try:
        figures(polite(arguments, server.url, 3))  # what a server that has worked holds
        before = process_state(server.process.pid)
        end = time.monotonic() + arguments.seconds
        rows, samples, running, played, queue = [], [], {}, {}, []
        while time.monotonic() < end:
            bench = polite(arguments, server.url, 8)
            server.until_running(POLITE)
            for address in ("127.0.0.2", "127.0.0.3", "127.0.0.4"):
                if not queue:
                    queue = random.sample(names, len(names))
                name = queue.pop()
                played[name] = played.get(name, 0) + 1
                running[address] = start(name, server.port, address)
            time.sleep(10)
            for process in running.values():
                stop(process)
            rows.append(figures(bench))
            samples.append(process_state(server.process.pid))
            if server.process.poll() is not None:
                break
        now = server.until_idle()
        time.sleep(80)  # longer than idle connections are kept
        after = process_state(server.process.pid)
        now = server.until_idle()
        code = server.end()
    finally:
        server.process.kill()
    found = []
    for row in rows:
        if not good(row):
            found.append(f"polite streams: {row}")
    for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"):
        if now["halfbyte:" + name] != 0:
            found.append(f"{name} is {now['halfbyte:' + name]} at the end")
    for name in ("threads", "open_files"):
        if after[name] > before[name]:
            found.append(f"{name}: {before[name]} before, {after[name]} after")
    if after["resident_mb"] > MOST_KEPT_MB:
        found.append(f"{after['resident_mb']:.0f} MB resident after, {MOST_KEPT_MB} are allowed")
    if code != 0:
        found.append(f"exit code {code}")
    report = {"seconds": arguments.seconds, "polite_loads": len(rows),
              "polite_tokens": sum(row.get("tokens", 0) for row in rows),
              "played": played, "before": before, "after": after, "samples": samples,
              "ended": now["halfbyte:request_success_total"],
              "refused": now.get("halfbyte:admission_rejections_total", 0),
              "http_requests": now["http_requests_total"],
              "preemptions": now["halfbyte:num_preemptions_total"],
              "log_lines_dropped": now["halfbyte:log_lines_dropped_total"], "exit_code": code,
              "chunk_p99_ms": sorted(row.get("chunk_p99_ms", -1) for row in rows),
              "live_p99_ms": sorted(row.get("live_p99_ms", -1) for row in rows),
              "found": found, "ok": not found, "rows": rows}
    print(json.dumps({key: value for key, value in report.items()
                      if key not in ("rows", "played", "samples")}, indent=1))
    return report, not found


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", type=pathlib.Path, default=ROOT / "build/release/bin/halfbyte")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "bench/results/serve")
    parser.add_argument("--seconds", type=float)
    parser.add_argument("what", nargs="?", choices=["table", "chaos"], default="table")
    parser.add_argument("words", nargs="*", metavar="WORD")
    arguments = parser.parse_args()
    arguments.program = arguments.program.resolve()
    arguments.seconds = arguments.seconds or (10 if arguments.what == "table" else 600)
    names = [name for name in BEHAVIOURS
             if not arguments.words or any(word in name for word in arguments.words)]
    runner = run_table if arguments.what == "table" else run_chaos
    report, ok = runner(arguments, names)
    today = datetime.date.today().isoformat()
    case = "hostile" if arguments.what == "table" else "chaos"
    ahead = "chrt -f 10 " if os.sched_getscheduler(0) == os.SCHED_FIFO else ""  # of other work
    report = {"case": case, "date": today, "machine": machine(), "commit": commit(),
              "command": f"{ahead}scripts/serve_hostile.py {arguments.what}",
              "server": " ".join(SERVER), "polite": POLITE} | report
    arguments.out.mkdir(parents=True, exist_ok=True)
    path = arguments.out / f"{today}-{case}.json"
    path.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print(f"{case}: {'ok' if ok else 'FAILED'}, {path}")
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
