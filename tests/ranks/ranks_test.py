"""Runs the built program under mpirun and compares it with one process.

    ranks_test.py PROGRAM REPOSITORY MPIRUN      MPIRUN empty: built without MPI, all is skipped
"""
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import unittest

SKIPPED = 77  # SKIP_RETURN_CODE
TIMEOUT_SECONDS = 120  # against hanging; nothing here takes a tenth of it
PROMPT = "Once upon a time"

PROGRAM, REPOSITORY, MPIRUN = (sys.argv[1:4] + ["", "", ""])[:3]
MODEL = str(pathlib.Path(REPOSITORY) / "models" / "tiny-v4-nvfp4")


def mpirun(*parts):
    """The command line for groups of ranks: each part is (number of ranks, arguments)."""
    line = [MPIRUN, "--oversubscribe", "--bind-to", "none"]
    if os.getuid() == 0:
        line.append("--allow-run-as-root")
    for index, (number, arguments) in enumerate(parts):
        line += ([":"] if index else []) + ["-n", str(number), PROGRAM, *arguments]
    return line


def run(line):
    return subprocess.run(line, capture_output=True, text=True, timeout=TIMEOUT_SECONDS,
                          check=False, stdin=subprocess.DEVNULL)


def ours(stderr):
    """The lines of stderr that the program printed; mpirun adds its own."""
    return [line for line in stderr.splitlines() if line.startswith("halfbyte")]


def generate(*flags):
    return ["generate", MODEL, "--prompt", PROMPT, "--threads", "1", *flags]


def stat_of(process):
    """The fields of /proc/PID/stat from the state on: state, parent, ...; empty if it is gone."""
    try:
        stat = pathlib.Path(f"/proc/{process}/stat").read_text(encoding="utf-8")
    except OSError:
        return []
    return stat.rpartition(")")[2].split()


def busy_children(parent):
    """Processes that have `parent` as their parent and have computed for half a second."""
    def is_busy(stat):
        return stat[1:2] == [str(parent)] and int(stat[11]) > os.sysconf("SC_CLK_TCK") / 2

    processes = (path.name for path in pathlib.Path("/proc").glob("[0-9]*"))
    return [int(process) for process in processes if is_busy(stat_of(process))]


def runs(process):
    """Whether it does; what nobody has waited for yet does not."""
    return stat_of(process)[:1] not in ([], ["Z"])


class Ranks(unittest.TestCase):
    def test_generate_gives_the_tokens_of_one_process(self):
        for arithmetic in ("w4a16", "w4a4"):
            flags = generate("--json", "--max-tokens", "24", "--seed", "5", "--temperature", "1",
                             "--arithmetic", arithmetic)
            alone = json.loads(run([PROGRAM, *flags]).stdout)
            for number in (2, 3):
                done = run(mpirun((number, flags)))
                self.assertEqual(done.returncode, 0, done.stderr)
                together = json.loads(done.stdout)  # one object: only the first rank prints
                for field in ("text", "token_ids", "finish_reason", "seed"):
                    self.assertEqual(together[field], alone[field], field)

    def test_without_a_seed_all_ranks_draw_with_the_first_ones(self):
        done = run(mpirun((2, generate("--json", "--max-tokens", "24", "--temperature", "1"))))
        self.assertEqual(done.returncode, 0, done.stderr)
        seed = json.loads(done.stdout)["seed"]
        alone = run([PROGRAM, *generate("--json", "--max-tokens", "24", "--temperature", "1",
                                        "--seed", str(seed))])
        self.assertEqual(json.loads(done.stdout)["token_ids"],
                         json.loads(alone.stdout)["token_ids"])

    def test_logits_and_perplexity_are_those_of_one_process(self):
        with tempfile.TemporaryDirectory() as folder:
            ids = pathlib.Path(folder) / "ids.json"
            ids.write_text(json.dumps(list(range(1, 60))))
            files = []
            for name, launch in (("alone", lambda f: [PROGRAM, *f]),
                                 ("together", lambda f: mpirun((2, f)))):
                out = pathlib.Path(folder) / (name + ".safetensors")
                done = run(launch(["logits", MODEL, "--ids", str(ids), "--out", str(out)]))
                self.assertEqual(done.returncode, 0, done.stderr)
                said = run(launch(["perplexity", MODEL, "--ids", str(ids)]))
                self.assertEqual(said.returncode, 0, said.stderr)
                files.append((out.read_bytes(), said.stdout))
            self.assertEqual(files[0], files[1])
            # Only the first rank can fail here; the others must not wait for it.
            done = run(mpirun((2, ["logits", MODEL, "--ids", str(ids), "--out",
                                   folder + "/missing/x.safetensors"])))
            self.assertEqual(done.returncode, 1)
            self.assertEqual(len(ours(done.stderr)), 1, done.stderr)

    def test_calibrate_writes_the_file_of_one_process(self):
        with tempfile.TemporaryDirectory() as folder:
            text = pathlib.Path(folder) / "text"
            text.write_text((pathlib.Path(REPOSITORY) / "tests/data/goldens/val.txt").read_text(
                encoding="utf-8")[:3000], encoding="utf-8")
            results = []
            for name, launch in (("1", lambda f: [PROGRAM, *f]), ("2", lambda f: mpirun((2, f))),
                                 ("3", lambda f: mpirun((3, f)))):
                out = pathlib.Path(folder) / name
                done = run(launch(["calibrate", MODEL, "--text", str(text), "--out", str(out),
                                   "--json", "--threads", "1"]))
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertEqual(json.loads(done.stdout), json.loads(out.read_bytes()))
                results.append((out.read_bytes(), done.stdout, ours(done.stderr)))
            self.assertEqual(results[1], results[0])
            self.assertEqual(results[2], results[0])

    def test_bench_moe_prints_one_report_of_all_ranks(self):
        def bench(*flags):
            return ["bench", "moe", "--shape", "64,32,8,3", "--threads", "1", "--json", *flags]

        done = run(mpirun((3, bench("--tokens", "1,9", "--arithmetic", "w4a16,w4a4"))))
        self.assertEqual(done.returncode, 0, done.stderr)
        report = json.loads(done.stdout)
        self.assertEqual((report["ranks"], report["threads"]), (3, 1))
        self.assertEqual([(row["arithmetic"], row["tokens"]) for row in report["rows"]],
                         [("w4a16", 1), ("w4a16", 9), ("w4a4", 1), ("w4a4", 9)])
        expert_bytes = 3 * 64 * 32 * 9 // 16
        for row in report["rows"]:
            self.assertEqual(row["weight_bytes"], min(8, 3 * row["tokens"]) * expert_bytes)
            self.assertEqual(row["flops"], row["tokens"] * 3 * 2 * 3 * 64 * 32)
            self.assertGreater(row["layer_us"], 0)
        for limit in ("read_gb_per_s", "int8_gops", "bf16_gflops"):
            self.assertGreater(report["limits"][limit], 0)

        for parts, message in (
                (((1, bench("--tokens", "1")), (1, bench("--tokens", "2"))),
                 "measures something else than rank 0"),
                (((9, bench("--tokens", "1")),), "8 experts for 9 ranks")):
            done = run(mpirun(*parts))
            self.assertEqual((done.returncode, done.stdout), (1, ""))
            self.assertEqual(len(ours(done.stderr)), 1, done.stderr)
            self.assertIn(message, done.stderr)

    def test_an_error_on_one_rank_ends_all_with_one_sentence(self):
        with tempfile.TemporaryDirectory() as folder:
            bad = pathlib.Path(folder) / "model"
            bad.mkdir()
            for path in pathlib.Path(MODEL).iterdir():
                if path.name != "model-00003-of-00004.safetensors":
                    (bad / path.name).symlink_to(path)
            good_flags = generate("--max-tokens", "8")
            bad_flags = [str(bad) if flag == MODEL else flag for flag in good_flags]
            for parts, speaker in ((((1, good_flags), (1, bad_flags)), "rank 1 of 2: "),
                                   (((1, bad_flags), (1, good_flags)), ""),
                                   (((1, bad_flags), (1, bad_flags)), "")):
                done = run(mpirun(*parts))
                self.assertEqual(done.returncode, 1)
                self.assertEqual(done.stdout, "")
                said = ours(done.stderr)
                self.assertEqual(len(said), 1, done.stderr)
                self.assertTrue(said[0].startswith("halfbyte generate: " + speaker), said[0])
                self.assertIn("model-00003-of-00004.safetensors", said[0])

    def test_ranks_with_different_work_are_refused(self):
        done = run(mpirun((1, generate("--max-tokens", "8")),
                          (1, generate("--max-tokens", "9"))))
        self.assertEqual(done.returncode, 1)
        self.assertEqual(len(ours(done.stderr)), 1, done.stderr)
        self.assertIn("is doing something else than rank 0", done.stderr)

    def test_a_killed_rank_ends_the_others_with_a_message(self):
        with tempfile.TemporaryDirectory() as folder:
            # Work for a minute, if nobody stopped it.
            ids = pathlib.Path(folder) / "ids.json"
            ids.write_text(json.dumps([i % 500 for i in range(4000)]))
            out = pathlib.Path(folder) / "logits.safetensors"
            self.kill_a_rank(["logits", MODEL, "--ids", str(ids), "--out", str(out), "--chunks",
                              "1", "--arithmetic", "ref", "--threads", "1"])
            text = pathlib.Path(folder) / "text"
            text.write_text("Once upon a time. " * 10000)
            self.kill_a_rank(["calibrate", MODEL, "--text", str(text), "--out", str(out),
                              "--threads", "1"])
        self.kill_a_rank(["bench", "moe", "--shape", "2048,1024,8,2", "--tokens", "4096",
                          "--arithmetic", "ref", "--threads", "1"])

    def kill_a_rank(self, arguments):
        with subprocess.Popen(mpirun((2, arguments)), stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, stdin=subprocess.DEVNULL,
                              text=True) as launcher:
            try:
                while len(ranks := busy_children(launcher.pid)) < 2 and launcher.poll() is None:
                    time.sleep(0.01)
                self.assertEqual(len(ranks), 2)
                os.kill(max(ranks), signal.SIGKILL)
                start = time.monotonic()
                _, stderr = launcher.communicate(timeout=TIMEOUT_SECONDS)
                print(f"ended {time.monotonic() - start:.1f} s after the kill", file=sys.stderr)
                self.assertNotEqual(launcher.returncode, 0)
                self.assertRegex(stderr, "(?i)killed")
                for rank in ranks:
                    self.assertFalse(runs(rank), f"{rank} still runs")
            finally:
                launcher.terminate()


if __name__ == "__main__":
    if not MPIRUN:
        print("SKIPPED: CMake found no MPI, so nothing here was tested; install libopenmpi-dev "
              "and openmpi-bin and configure again")
        sys.exit(SKIPPED)
    unittest.main(argv=sys.argv[:1], verbosity=2)
