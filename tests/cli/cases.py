"""How halfbyte answers calls that cannot work: one row each. To add a case, add a row.

Names in braces are files and folders that cli_test.py makes, or {model}, the bundled model:
{missing} does not exist, {tmp} is a writable folder, {locked_dir}, {locked_file} and
{read_only_dir} have no permissions; {pipe} is a named pipe; the others are in FILES below.
"""
import dataclasses
import json
import pathlib

USAGE = 2   # the call itself is wrong
FAILED = 1  # the call is right, but its input is bad


@dataclasses.dataclass
class Case:
    group: str                  # the command, or "usage"; each group is one CTest test
    args: list
    exit: int
    stderr: str = ""            # regular expression, case-insensitive
    stdout: str = ""            # regular expression; if empty, a failed call must print nothing
    unprivileged: bool = False  # run as nobody when the tests run as root
    stdout_to: str = ""         # a file to write stdout into
    limit: tuple = ()           # such as ("FSIZE", 4096): resource.setrlimit(RLIMIT_FSIZE)


MODEL = pathlib.Path(__file__).resolve().parents[2] / "models/tiny-v4-nvfp4"
TOKENIZER = (MODEL / "tokenizer.json").read_bytes()
CONFIG = b'{"model_type": "deepseek_v4"}'



def recommending(generation_config):
    """The bundled model with other recommendations."""
    return {path.name: path for path in MODEL.iterdir()} | {
        "generation_config.json": generation_config}


# Folders end in _dir and map file names to contents, or to files that links shall point to.
FILES = {
    "empty_dir": {},
    "not_utf8_\udcff_dir": {"config.json": CONFIG, "model.safetensors": b"\2\0\0\0\0\0\0\0{}"},
    "text_file": b"The number of cat is 123.\n",
    "empty_file": b"",
    "config_only_dir": {"config.json": CONFIG},
    "broken_config_dir": {"config.json": b'{"model_type": ', "model.safetensors": b"\0" * 8},
    "unknown_model_dir": {"config.json": b'{"model_type": "llama"}',
                          "model.safetensors": b"\2\0\0\0\0\0\0\0{}"},
    "newer_model_dir": {"config.json": b'{"model_type": "deepseek_v41"}',
                        "model.safetensors": b"\2\0\0\0\0\0\0\0{}"},
    "truncated_dir": {"config.json": CONFIG, "model.safetensors": b"\xff\0\0\0"},
    "lying_header_dir": {"config.json": CONFIG, "model.safetensors": b"\xff" * 8 + b"{}"},
    "absent_shard_dir": {
        "config.json": CONFIG,
        "model.safetensors.index.json": json.dumps(
            {"metadata": {}, "weight_map": {"a": "model-00001-of-00002.safetensors"}}).encode()},
    "broken_index_dir": {"config.json": CONFIG, "model.safetensors.index.json": b"[1, 2"},
    "broken_encoder_dir": {"tokenizer.json": TOKENIZER,
                           "encoding/encoding_dsv4.py": b"x = 1\ny = 'z\n"},
    "golden_dir": {"tokenizer.json": TOKENIZER,
                   "encoding/tests/test_input_1.json": b'[{"role": "user", "content": "a"}]',
                   "encoding/tests/test_output_1.txt": b"a"},
    "stop_string_dir": recommending(b'{"do_sample": false, "stop_strings": ["89"]}'),
    "three_tokens_dir": recommending(b'{"do_sample": false, "max_new_tokens": 3, "top_h": NaN}'),
    "no_token_dir": recommending(b'{"max_new_tokens": 0}'),
    "unknown_normalizer_dir": recommending(b"{}") | {
        "tokenizer.json": TOKENIZER.replace(b'"normalizer": null',
                                            b'"normalizer": {"type": "Strip"}')},
    "broken_toml_file": b"port = ",
    "unknown_flag_toml_file": b"prot = 8000\n",
    "wrong_value_toml_file": b'port = "http"\n',
    "nested_toml_file": b"[port]\nnumber = 8000\n",
    "ids_file": b"[1, 2, 3]",
    "ids_single_file": b"[7]",
    "ids_empty_file": b"[]",
    "ids_not_json_file": b"[1, 2,",
    "ids_not_a_list_file": b'"1, 2"',
    "ids_text_file": b'[1, "2"]',
    "ids_float_file": b"[1, 2.5]",
    "ids_negative_file": b"[1, -1]",
    "ids_huge_file": b"[1, 99999999999999999999999]",
    "ids_out_of_range_file": b"[1, 1000000]",
    "ids_too_many_file": json.dumps([5] * 5000).encode(),
}

NO_CHECKPOINTS = [  # folder, what the sentence must say
    ("{missing}", "/missing"),
    ("{text_file}", "/text_file"),
    ("{empty_dir}", "/empty"),
    ("{broken_index_dir}", "model.safetensors.index.json"),
    ("{config_only_dir}", "/config_only"),
]
FAULTY_CHECKPOINTS = [  # inspect and verify report on these, everything else refuses them
    ("{truncated_dir}", "model.safetensors: .*too short"),
    ("{lying_header_dir}", "model.safetensors: header length"),
    ("{absent_shard_dir}", "model-00001-of-00002.safetensors"),
    ("{broken_config_dir}", "config.json"),
    ("{unknown_model_dir}", "llama"),
    ("{newer_model_dir}", "deepseek_v41"),
]


def usage():
    yield [], "subcommand|command"
    yield ["no-such-command"], "no-such-command|command"
    yield ["--no-such-flag"], "no-such-flag|command"
    yield [""], "command"


def no_checkpoint(command, *rest):
    """Every command that takes a model directory refuses these with a sentence naming the path."""
    for folder, pattern in NO_CHECKPOINTS:
        yield Case(command, [command, folder, *rest], FAILED, f"^halfbyte {command}: .*{pattern}")
    yield Case(command, [command, "{locked_dir}", *rest], FAILED,
               f"^halfbyte {command}: .*/locked", unprivileged=True)


def bad_directories(command, *rest):
    yield from no_checkpoint(command, *rest)
    for folder, pattern in FAULTY_CHECKPOINTS:
        yield Case(command, [command, folder, *rest], FAILED, f"^halfbyte {command}: .*{pattern}")


def reported_directories(command, exit_code):
    """Commands whose purpose is to report: the fault is a finding on stdout."""
    yield from no_checkpoint(command)
    for folder, pattern in FAULTY_CHECKPOINTS:
        yield Case(command, [command, folder], exit_code, "^$", stdout=f"error: .*{pattern}")


def bad_usage(command, *calls):
    """Rows of (arguments, pattern): wrong calls, exit 2."""
    for args, pattern in calls:
        yield Case(command, [command, *args], USAGE, pattern)


def bad_input(command, *calls):
    """Rows of (arguments, pattern): right calls with bad input, exit 1."""
    for args, pattern in calls:
        yield Case(command, [command, *args], FAILED, f"^halfbyte {command}: .*{pattern}")


def bad_ids(command, *rest, empty=r"empty|no token"):
    yield from bad_input(
        command,
        (["{model}", *rest, "--ids", "{missing}"], "/missing"),
        (["{model}", *rest, "--ids", "{empty_dir}"], "/empty"),
        (["{model}", *rest, "--ids", "{empty_file}"], "/empty_file"),
        (["{model}", *rest, "--ids", "{ids_empty_file}"], empty),
        (["{model}", *rest, "--ids", "{ids_not_json_file}"], "/ids_not_json_file"),
        (["{model}", *rest, "--ids", "{ids_not_a_list_file}"], "/ids_not_a_list_file"),
        (["{model}", *rest, "--ids", "{ids_text_file}"], "/ids_text_file"),
        (["{model}", *rest, "--ids", "{ids_float_file}"], "/ids_float_file"),
        (["{model}", *rest, "--ids", "{ids_negative_file}"], "-1"),
        (["{model}", *rest, "--ids", "{ids_huge_file}"], "/ids_huge_file|9999999"),
        (["{model}", *rest, "--ids", "{ids_out_of_range_file}"], "1000000"))
    yield Case(command, [command, "{model}", *rest, "--ids", "{locked_file}"], FAILED,
               f"^halfbyte {command}: .*/locked_file", unprivileged=True)


CASES = [
    *(Case("usage", args, USAGE, f"^halfbyte: .*({pattern}).*--help") for args, pattern in usage()),
    Case("usage", ["--version"], 0, stdout=r"^halfbyte \d+\.\d+\.\d+\n$"),
    Case("usage", ["--help"], 0, stdout="4-bit mixture-of-experts"),

    *reported_directories("inspect", 0),
    *bad_usage("inspect",
               ([], "dir"),
               (["{model}", "{model}"], "expected|argument"),
               (["{model}", "--no-such-flag"], "no-such-flag")),

    Case("inspect", ["inspect", "{not_utf8_\udcff_dir}", "--json"], 0, stdout="not_utf8_\ufffd"),
    Case("inspect", ["inspect", "{model}", "--json"], FAILED, "^halfbyte: .*(write|written)",
         stdout_to="/dev/full"),

    *reported_directories("verify", FAILED),
    *bad_input("verify",
               (["{model}", "--reference", "{missing}"], "/missing"),
               (["{model}", "--reference", "{empty_dir}"], "/empty")),
    *bad_usage("verify",
               ([], "dir"),
               (["{model}", "--no-such-flag"], "no-such-flag"),
               (["{model}", "--reference"], "reference"),
               (["{model}", "--for", "vllm,transfomers"], "for.*did you mean transformers"),
               (["{model}", "--for", ""], "for.*known are all, halfbyte, transformers")),
    Case("verify", ["verify", "{model}", "--for", "halfbyte"], 0, stdout="halfbyte +yes"),
    Case("verify", ["verify", "{model}", "--for", "vllm"], FAILED, stdout="vllm .* no .*official"),

    *bad_directories("convert", "{tmp}/out", "--format", "nvfp4"),
    *bad_input("convert",
               (["{model}", "{text_file}", "--format", "bf16"], "/text_file"),
               (["{model}", "{text_file}/out", "--format", "bf16"], "/text_file"),
               (["{model}", "{model}", "--format", "bf16"], "tiny-v4-nvfp4|model")),
    Case("convert", ["convert", "{model}", "{read_only_dir}/out", "--format", "bf16"], FAILED,
         "^halfbyte convert: .*/read_only", unprivileged=True),
    *bad_usage("convert",
               ([], "src"),
               (["{model}"], "dst"),
               (["{model}", "{tmp}/out"], "format"),
               (["{model}", "{tmp}/out", "--format", "fp3"], "format.*fp3"),
               (["{model}", "{tmp}/out", "--format", "nvfp4", "--scope", "all"], "scope.*all"),
               (["{model}", "{tmp}/out", "--format", "nvfp4", "--no-such-flag"], "no-such-flag")),

    *bad_directories("generate", "--ids", "{ids_file}"),
    *bad_ids("generate"),
    *bad_input("generate",
               (["{model}", "--prompt", ""], "empty|no token"),
               (["{model}", "--ids", "{ids_too_many_file}"], "4096|context|position"),
               (["{model}", "--prompt", "a", "--max-tokens", "-1"], "max_tokens|--max-tokens"),
               (["{model}", "--prompt", "a", "--max-tokens", "9" * 30], "max_tokens|--max-tokens"),
               (["{model}", "--prompt", "a", "--temperature", "-0.1"], "temperature"),
               (["{model}", "--prompt", "a", "--temperature", "nan"], "temperature"),
               (["{model}", "--prompt", "a", "--temperature", "inf"], "temperature"),
               (["{model}", "--prompt", "a", "--top-p", "1.5"], "top.p"),
               (["{model}", "--prompt", "a", "--top-p", "-0.1"], "top.p"),
               (["{model}", "--prompt", "a", "--top-p", "nan"], "top.p"),
               (["{model}", "--prompt", "a", "--top-k", "-2"], "top.k"),
               (["{model}", "--prompt", "a", "--min-p", "1.5"], "min.p"),
               (["{model}", "--prompt", "a", "--min-p", "nan"], "min.p"),
               (["{model}", "--prompt", "a", "--repetition-penalty", "0"], "repetition_penalty"),
               (["{no_token_dir}", "--prompt", "a"],
                "/no_token/generation_config.json: field max_new_tokens is 0"),
               (["{unknown_normalizer_dir}", "--prompt", "a"],
                "/tokenizer.json: field normalizer: type \"Strip\"")),
    *bad_usage("generate",
               ([], "model_dir|dir"),
               (["{model}"], "--prompt"),
               (["{model}", "--prompt", "a", "--chat", "b"], "--(prompt|chat)"),
               (["{model}", "--prompt", "a", "--ids", "{ids_file}"], "--(prompt|ids)"),
               (["{model}", "--prompt"], "--prompt"),
               (["{model}", "--prompt", "a", "--max-tokens", "many"], "--max-tokens"),
               (["{model}", "--prompt", "a", "--temperature", "warm"], "--temperature"),
               (["{model}", "--prompt", "a", "--seed", "x"], "--seed"),
               (["{model}", "--prompt", "a", "--seed", "-1"], "--seed"),
               (["{model}", "--prompt", "a", "--math", "fp64"], "--math.*fp64"),
               (["{model}", "--prompt", "a", "--arithmetic", "w8a8"], "--arithmetic.*w8a8"),
               (["{model}", "--prompt", "a", "--threads", "0"], "--threads"),
               (["{model}", "--prompt", "a", "--system", "b"], "--system.*--chat"),
               (["{model}", "--prompt", "a", "--thinking", "true"], "--thinking.*--chat"),
               (["{model}", "--prompt", "a", "--threads", "-3"], "--threads"),
               (["{model}", "--prompt", "a", "--generation-config", "some"], "generation-config"),
               (["{model}", "--prompt", "a", "--no-such-flag"], "no-such-flag")),

    # The bundled model answers "alpa is 890."
    Case("generate", ["generate", "{stop_string_dir}", "--prompt", "The number of cat"], 0,
         stdout="^alpa is \n$", stderr="\\(stop\\)"),
    Case("generate", ["generate", "{three_tokens_dir}", "--prompt", "The number of cat"], 0,
         stderr="not used, though it may change texts: top_h\n(.|\n)* 3 generated .*\\(length\\)"),
    Case("generate", ["generate", "{three_tokens_dir}", "--prompt", "The number of cat",
                      "--max-tokens", "4"], 0, stderr=" 4 generated "),
    Case("generate", ["generate", "{three_tokens_dir}", "--prompt", "The number of cat",
                      "--generation-config", "none", "--temperature", "0"], 0,
         stdout="^alpa is 890", stderr="^[^w]"),
    Case("generate", ["generate", "{unknown_normalizer_dir}", "--ids", "{ids_file}",
                      "--max-tokens", "2"], 0, stdout="^\\d+ \\d+$",
         stderr="/tokenizer.json: field normalizer.*so ids come out"),
    Case("generate", ["generate", "{model}", "--ids", "{ids_file}", "--max-tokens", "1", "--json"],
         FAILED, "^halfbyte: stdout", stdout_to="/dev/full"),
    Case("generate", ["generate", "{model}", "--ids", "{ids_file}", "--max-tokens", "1",
                      "--threads", "64"], 0, unprivileged=True, limit=("NPROC", 1)),

    *(Case("doctor", ["doctor", folder], FAILED, f"^halfbyte doctor: .*{pattern}")
      for folder, pattern in (
          ("{missing}", "/missing/tokenizer.json"), ("{empty_dir}", "/empty/tokenizer.json"),
          ("{text_file}", "/text_file/tokenizer.json"), ("", "tokenizer.json"),
          ("{broken_encoder_dir}", "/encoding_dsv4.py: line 2: a string does not end"))),
    Case("doctor", ["doctor", "{locked_dir}"], FAILED, "^halfbyte doctor: .*/locked",
         unprivileged=True),
    Case("doctor", ["doctor", "{golden_dir}"], FAILED,
         stdout="test_input_1.json: differs: from byte 0: .* must be \"a\""),
    Case("doctor", ["doctor", "{model}"], 0, stdout="^wording: preview profile, no file brings"),
    Case("doctor", ["doctor", "{model}", "--json"], 0, stdout='"profile": "preview"'),
    *bad_usage("doctor", ([], "model_dir"), (["{model}", "--no-such-flag"], "no-such-flag")),

    *bad_directories("logits", "--ids", "{ids_file}", "--out", "{tmp}/logits.safetensors"),
    *bad_ids("logits", "--out", "{tmp}/logits.safetensors"),
    *bad_input("logits",
               (["{model}", "--ids", "{ids_file}", "--out", "{missing}/a"], "/missing"),
               (["{model}", "--ids", "{ids_file}", "--out", "{text_file}/a"], "/text_file"),
               (["{model}", "--ids", "{ids_file}", "--out", "{empty_dir}"], "/empty"),
               (["{model}", "--ids", "{ids_file}", "--out", "{pipe}"], "/pipe: .*not a regular"),
               (["{model}", "--ids", "{ids_file}", "--out", ""], "no file"),
               (["{model}", "--ids", "{pipe}", "--out", "{tmp}/a"], "/pipe: not a regular"),
               (["{model}", "--ids", "{ids_file}", "--out", "{tmp}/a", "--chunks", "2,0"],
                "chunk"),
               (["{model}", "--ids", "{ids_file}", "--out", "{tmp}/a", "--chunks", ""], "chunk"),
               (["{model}", "--ids", "{ids_file}", "--out", "{tmp}/a", "--chunks", "-3"],
                "chunk"),
               (["{model}", "--ids", "{ids_file}", "--out", "{tmp}/a", "--math", "fp32",
                 "--arithmetic", "w4a4"], "--math.*--arithmetic"),
               (["{model}", "--ids", "{ids_file}", "--out", "{tmp}/a", "--math", "fp32",
                 "--arithmetic", "w4a8"], "--math.*--arithmetic w4a8"),
               (["{model}", "--ids", "{ids_too_many_file}", "--out", "{tmp}/a"],
                "4096|context|position")),
    Case("logits", ["logits", "{model}", "--ids", "{ids_file}", "--out", "{tmp}/auto", "--device",
                    "auto"], 0, "^--device auto: (the CPU; a GPU is not used: .*|GPU 0)\n$"),
    Case("logits", ["logits", "{model}", "--ids", "{ids_file}", "--out", "{text_file}"], FAILED,
         "^halfbyte logits: --out .* is there already and holds no logits"),
    Case("logits", ["logits", "{model}", "--ids", "{ids_file}", "--out", "{read_only_dir}/a"],
         FAILED, "^halfbyte logits: .*/read_only", unprivileged=True),
    Case("logits", ["logits", "{model}", "--ids", "{ids_file}", "--out", "{tmp}/limited"], FAILED,
         "^halfbyte logits: .*/limited.*limit", limit=("FSIZE", 4096)),
    *bad_usage("logits",
               ([], "model_dir|dir"),
               (["{model}", "--out", "{tmp}/a"], "--ids"),
               (["{model}", "--ids", "{ids_file}"], "--out"),
               (["{model}", "--ids", "{ids_file}", "--out", "{tmp}/a", "--math", "x"], "--math"),
               (["{model}", "--ids", "{ids_file}", "--out", "{tmp}/a", "--gpu-memory-utilization",
                 "1.5"], "--gpu-memory-utilization.*1.5"),
               (["{model}", "--ids", "{ids_file}", "--out", "{tmp}/a", "--chunks", "1,x"],
                "--chunks")),

    *bad_directories("perplexity", "--ids", "{ids_file}"),
    *bad_ids("perplexity"),
    *bad_input("perplexity",
               (["{model}", "--text", "{missing}"], "/missing"),
               (["{model}", "--text", "{empty_dir}"], "/empty"),
               (["{model}", "--text", "{empty_file}"], "empty|token"),
               (["{model}", "--text", "{text_file}", "--context", "5000"], "--context 5000.*4096"),
               (["{model}", "--text", "{text_file}", "--context", "1"], "context"),
               (["{model}", "--text", "{text_file}", "--context", "-5"], "context"),
               (["{model}", "--text", "{text_file}", "--context", "0"], "context"),
               (["{model}", "--ids", "{ids_single_file}"], "two tokens|token")),
    *bad_usage("perplexity",
               ([], "model_dir|dir"),
               (["{model}"], "--text"),
               (["{model}", "--text", "{text_file}", "--ids", "{ids_file}"], "--(text|ids)"),
               (["{model}", "--text", "{text_file}", "--no-such-flag"], "no-such-flag")),

    # nobody, who one of these runs as, may write to /tmp only.
    *bad_directories("calibrate", "--text", "{text_file}",
                     "--out", "/tmp/halfbyte_cli_scales.json"),
    *bad_input("calibrate",
               (["{model}", "--text", "{missing}", "--out", "{tmp}/a"], "/missing"),
               (["{model}", "--text", "{empty_file}", "--out", "{tmp}/a"], "empty|token"),
               (["{model}", "--text", "{text_file}", "--out", "{missing}/a"], "/missing"),
               (["{model}", "--text", "{text_file}", "--out", "{empty_dir}"], "/empty"),
               (["{model}", "--text", "{text_file}", "--out", "{tmp}/a", "--context", "1"],
                "context"),
               (["{model}", "--text", "{text_file}", "--out", "{tmp}/a", "--context", "5000"],
                "--context 5000.*4096")),
    Case("calibrate", ["calibrate", "{model}", "--text", "{text_file}", "--out", "{text_file}"],
         FAILED, "^halfbyte calibrate: --out .* is there already and holds no activation scales"),
    Case("calibrate",
         ["calibrate", "{model}", "--text", "{text_file}", "--out", "{read_only_dir}/a"],
         FAILED, "^halfbyte calibrate: .*/read_only", unprivileged=True),
    *bad_usage("calibrate",
               ([], "model_dir|dir"),
               (["{model}", "--out", "{tmp}/a"], "--text"),
               (["{model}", "--text", "{text_file}"], "--out"),
               (["{model}", "--text", "{text_file}", "--out", "{tmp}/a", "--headroom", "7"],
                "--headroom"),
               (["{model}", "--text", "{text_file}", "--out", "{tmp}/a", "--arithmetic", "w4a4"],
                "--arithmetic")),
    # Measured scales are of use: written, read, used, and refused where they do not belong.
    Case("calibrate",
         ["calibrate", "{model}", "--text", "{text_file}", "--out", "{tmp}/scales.json"], 0,
         "experts saw no token", stdout="(?s)layer  stage.*wrote .*/scales.json"),
    Case("calibrate", ["perplexity", "{model}", "--text", "{text_file}", "--arithmetic", "w4a4",
                       "--activation-scales", "{tmp}/scales.json", "--headroom", "3"], 0,
         stdout="mean NLL"),
    Case("calibrate", ["perplexity", "{model}", "--text", "{text_file}", "--arithmetic", "w4a4",
                       "--activation-scales", "per-token"], 0, stdout="mean NLL"),
    *(Case("calibrate", ["perplexity", "{model}", "--text", "{text_file}", *args], FAILED,
           f"^halfbyte perplexity: .*{pattern}") for args, pattern in (
        (["--arithmetic", "w4a4", "--activation-scales", "checkpoint"],  # R79
         "layer 0, expert 0, gate: .*calibrate"),
        (["--arithmetic", "w4a4", "--activation-scales", "{missing}"], "/missing"),
        (["--arithmetic", "w4a4", "--activation-scales", "{ids_file}"], "/ids_file"),
        (["--arithmetic", "w4a4", "--activation-scales", "{text_file}"], "/text_file"),
        (["--activation-scales", "per-token"], "--activation-scales.*w4a4"),
        (["--activation-scales", "per-token", "--arithmetic", "w4a8"], "w4a4; w4a8 has no"),
        (["--headroom", "3"], "--headroom.*w4a4"))),
    Case("calibrate", ["perplexity", "{model}", "--text", "{text_file}", "--headroom", "7"], USAGE,
         "--headroom"),

    *bad_usage("serve",
               ([], "model_dir|dir"),
               (["{model}", "--prot", "1"], r"--prot.*did you mean --port\?"),
               (["{model}", "--max-num-sequences=4"], "--max-num-sequences"),
               (["{model}", "--port", "70000"], "--port"),
               (["{model}", "--overload-status", "500"], "--overload-status"),
               (["{model}", "--device", "gpu"], "--device gpu.*cuda"),
               (["{model}", "--block-size", "128"], "--block-size"),
               (["{model}", "--reasoning-parser", "qwen3"], "--reasoning-parser.*qwen3"),
               (["{model}", "--speculative-config", "{{}}"], "--speculative-config"),
               (["{model}", "--config", "{missing}"], "/missing"),
               (["{model}", "--config", "{broken_toml_file}"], "/broken_toml_file: line 1"),
               (["{model}", "--config", "{unknown_flag_toml_file}"],
                r"/unknown_flag_toml_file: prot: .*did you mean port\?"),
               (["{model}", "--config", "{wrong_value_toml_file}"],
                "/wrong_value_toml_file: port: .*http"),
               (["{model}", "--config", "{nested_toml_file}"], "/nested_toml_file: port: "),
               (["{model}", "--allowed-hosts", "http://box"], "--allowed-hosts http://box is no"),
               # All that contradicts itself, in one report and before anything is read.
               (["{missing}", "--max-num-seqs", "500", "--root-path", "llm/", "--math", "fp32",
                 "--kv-cache-dtype", "fp8", "--no-deterministic"],
                "--kv-cache-dtype fp8 and --math fp32.*; --no-deterministic.*; "
                "--max-num-batched-tokens 512 .*628; --root-path llm/")),
    Case("serve", ["serve", "{model}", "--print-config", "--port", "1234"], 0,
         stdout='"port": 1234,'),
    *(Case("serve", ["serve", folder, "--port", "0", "--log-level", "error"], 3,
           f"^halfbyte serve: .*{pattern}") for folder, pattern in (
        ("{missing}", "/missing"), ("{empty_dir}", "/empty"), ("{text_file}", "/text_file"))),
    *(Case("serve", ["serve", "{model}", "--port", "0", "--log-level", "error", *args], exit_code,
           f"^halfbyte serve: .*{pattern}") for args, exit_code, pattern in (
        (["--kv-cache-memory-bytes", "1000"], 4, "1000 bytes of KV memory.*largest that fits"),
        (["--host", "192.0.2.1"], 5, "192.0.2.1"),
        (["--uds", "{text_file}"], 5, "something else than a socket"),
        (["--uds", "{missing}/socket"], 5, "/missing/socket"),
        (["--api-key-file", "{missing}"], 5, "/missing"),
        (["--api-key-file", "{empty_file}"], 5, "/empty_file: no key"),
        (["--override-generation-config", '{{"temperature": "warm"}}'], 3,
         "--override-generation-config.*temperature"))),

    *bad_usage("bench",
               ([], "subcommand.*halfbyte bench --help"),
               (["no-such-bench"], "no-such-bench|subcommand"),
               (["moe", "--tokens", "1"], "^halfbyte bench moe: .*--shape"),
               (["moe", "--shape", "v4-flash"], "^halfbyte bench moe: .*--tokens"),
               (["moe", "--shape", "v5", "--tokens", "1"], "v5.*v4-flash"),
               (["moe", "--shape", "64,32,8", "--tokens", "1"], "64,32,8"),
               (["moe", "--shape", "60,32,8,2", "--tokens", "1"], "hidden size 60"),
               (["moe", "--shape", "64,32,8,9", "--tokens", "1"], "top_k 9"),
               (["moe", "--shape", "64,32,8,2", "--tokens", "0"], "--tokens.*0"),
               (["moe", "--shape", "64,32,8,2", "--tokens", "1,x"], "--tokens.*x"),
               (["moe", "--shape", "64,32,8,2", "--tokens", "1", "--threads", "0"], "--threads"),
               (["moe", "--shape", "64,32,8,2", "--tokens", "1", "--arithmetic", "w4a16,w3"],
                "w3 is not known; .*w4a8"),
               (["moe", "--shape", "64,32,8,2", "--tokens", "1", "--device", "cuda"],
                "cuda is not part of this build.*docs/cuda.md"),
               (["moe", "--shape", "64,32,8,2", "--tokens", "1", "--routing", "dirichlet:0"],
                "--routing.*neither rotating, uniform nor dirichlet:A"),
               (["model", "--layers", "2"], "^halfbyte bench model: .*--shape"),
               (["model", "--shape", "v4-flash", "--context", "1x"], "--context.*x"),
               (["model", "--shape", "v4-flash", "--batch", "0"], "--batch.*0"),
               (["model", "--shape", "v4-flash", "--device", "cuda"], "--device.*cuda"),
               (["serve"], "^halfbyte bench serve: .*model.*--url"),
               (["serve", "{model}", "--url", "http://127.0.0.1:1"], "model.*--url"),
               (["serve", "{model}", "--concurrency", "8,0"], "--concurrency"),
               (["serve", "{model}", "--disconnect-fraction", "2"], "--disconnect-fraction")),
    *(Case("bench", ["bench", "serve", *args], FAILED, f"^halfbyte bench serve: .*{pattern}")
      for args, pattern in (
          (["--url", "http://192.0.2.1:80"], "192.0.2.1.*only servers of this machine"),
          (["--url", "http://127.0.0.1:1"], "127.0.0.1:1: cannot connect"),
          (["{model}", "--text", "{missing}"], "/missing"))),
    Case("bench", ["bench", "serve", "{model}", "--server-flags", "--load-format fake",
                   "--concurrency", "1,4", "--max-tokens", "8"], 0,
         stdout="(?s)1 clients: .*32 of 32 requests complete.*4 clients: .*chunk delay"),
    Case("bench", ["bench", "moe", "--shape", "1048576,1048576,65536,1", "--tokens", "1"], FAILED,
         r"^halfbyte bench moe: the bench needs memory of .*\(65536 experts .*\), "
         r"but .*B are free .*; .*--shape"),
    Case("bench", ["bench", "moe", "--shape", "64,32,8,2", "--tokens", "1,3", "--json"], 0,
         stdout='"read_gb_per_s": [0-9]'),
    Case("bench", ["bench", "moe", "--shape", "64,32,8,2", "--tokens", "2", "--arithmetic",
                   "w4a8"], 0, stdout="(?s)limits: read .* GB/s.*w4a8"),
    *(Case("bench", ["bench", "model", *args], FAILED, f"^halfbyte bench model: .*{pattern}")
      for args, pattern in (
          (["--shape", "v4-pro"],
           r"the bench needs memory of .*\(packed weights .*\), but .* are free .*; .*--experts"),
          (["--shape", "v4-flash", "--layers", "44"], "44 layers of a model that has 43"),
          (["--shape", "v4-flash", "--layers", "2", "--experts", "5"],
           "5 experts of a model that has 256 and chooses 6"),
          (["--shape", "v4-flash", "--layers", "2", "--context", "1024k"],
           "--context 1048576, .* the model's context of 1048576"),
          (["--shape", "{missing}"], "/missing"),
          (["--shape", "{model}/tokenizer.json"], "tokenizer.json: field model_type is missing"))),
    Case("bench", ["bench", "model", "--shape", "{model}/config.json", "--layers", "2", "--batch",
                   "1,2", "--context", "64,2k", "--prefill", "100"], 0,
         stdout="(?s)1 C4, 1 C128.*limits: .*2 at 2048: .*% of reading.*select.*prompt of 100"),
    Case("bench", ["bench", "model", "--shape", "{model}/config.json", "--layers", "1", "--batch",
                   "1", "--context", "64", "--prefill", "32", "--arithmetic", "w4a8", "--json"], 0,
         stdout='"gemm_share": [0-9]'),
]
