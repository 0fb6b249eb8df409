"""The model over HTTP: goldens of tests/data."""
import json
import os

import pytest

from served import SOURCE, Server
from test_openai_client import generate

GOLDENS = SOURCE / "tests" / "data" / "goldens"
GENERATIONS = json.loads((GOLDENS / "tiny-v4" / "generations.json").read_text())["generations"]
TOKENIZER_CASES = json.loads((SOURCE / "tests/data/tokenizer/cases.json").read_text())
RECORDED_NLL = 1.45008  # of the first 1,024 tokens: src/offline/tiny_model_test.cc


def greedy(server, prompt, count):
    answer = server.json("/v1/completions", {"prompt": prompt, "max_tokens": count,
                                             "temperature": 0, "return_token_ids": True})
    return answer["choices"][0]["token_ids"]


def negative_log_likelihoods(server, tokens):
    answer = server.json("/v1/completions", {"prompt": tokens, "max_tokens": 0, "echo": True,
                                             "logprobs": 0})
    first, *rest = answer["choices"][0]["logprobs"]["token_logprobs"]
    assert first is None and len(rest) == len(tokens) - 1
    return [-value for value in rest]


def held_out(server):
    text = (GOLDENS / "val.txt").read_text(encoding="utf-8")
    return server.json("/tokenize", {"prompt": text})["tokens"]


@pytest.mark.parametrize("case", TOKENIZER_CASES, ids=lambda case: repr(case["text"][:12]))
def test_tokenizer_cases(server, case):
    tokenized = server.json("/tokenize", {"prompt": case["text"], "return_token_strs": True})
    assert tokenized["tokens"] == case["ids"]
    assert tokenized["count"] == len(case["ids"]) == len(tokenized["token_strs"])
    assert server.json("/detokenize", {"tokens": case["ids"]})["prompt"] == case["decoded"]


def test_a_chat_can_be_tokenized_and_rendered(server):
    chat = {"messages": [{"role": "user", "content": "Hello"}]}
    tokens = server.json("/tokenize", chat)["tokens"]
    rendered = server.json("/render", chat)
    assert rendered["prompt_token_ids"] == tokens
    assert server.json("/detokenize", {"tokens": tokens})["prompt"] == rendered["prompt"]
    assert "<｜User｜>Hello<｜Assistant｜>" in rendered["prompt"]


def test_greedy_continuations_are_those_of_the_plain_loop(server, tmp_path):
    for i, case in enumerate(GENERATIONS):
        ids = tmp_path / f"{i}.json"
        ids.write_text(json.dumps(case["prompt_ids"]))
        count = len(case["greedy_ids"])
        assert greedy(server, case["prompt_ids"], count) == \
            generate("--ids", ids, "--max-tokens", count)["token_ids"], case["prompt"]


def test_held_out_text_is_predicted_as_recorded(server):
    values = negative_log_likelihoods(server, held_out(server)[:1024])
    assert sum(values) / len(values) == pytest.approx(RECORDED_NLL, abs=1e-3)


@pytest.fixture(scope="module")
def source_model():
    """The bf16 model that the bundled one was converted from; not in this repository."""
    if "HALFBYTE_TINY_V4" not in os.environ:
        pytest.skip("HALFBYTE_TINY_V4 is not set: the bf16 tiny-v4 is not served")
    with Server("--math", "fp32", model=os.environ["HALFBYTE_TINY_V4"]) as started:
        yield started


def test_greedy_goldens_of_the_source_model(source_model):
    clear = [case for case in GENERATIONS if case["min_top1_gap"] > 0.01]
    assert len(clear) >= 5
    for case in clear:
        ids = greedy(source_model, case["prompt_ids"], len(case["greedy_ids"]))
        assert ids == case["greedy_ids"], case["prompt"]


def test_held_out_loss_of_the_source_model(source_model):
    tokens = held_out(source_model)
    values = [value for i in range(8)
              for value in negative_log_likelihoods(source_model, tokens[1024 * i:1024 * (i + 1)])]
    assert sum(values) / len(values) == pytest.approx(1.80411, abs=1e-3)
