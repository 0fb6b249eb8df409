"""What a request gives does not depend on who shares the batch, nor on the prefix cache."""
import concurrent.futures

import pytest

TOKENS = 64
QUESTIONS = [f"The number of cat is {100 + i}. What is the number of cat?" for i in range(32)]


def token_ids(server, **fields):
    body = {"max_tokens": TOKENS, "ignore_eos": True, "return_token_ids": True}
    answer = server.json("/v1/completions", body | fields)
    return answer["choices"][0]["token_ids"], answer["usage"]


@pytest.mark.parametrize("sampling", [{"temperature": 0}, {"temperature": 1.0, "top_p": 0.95}],
                         ids=["greedy", "seeded"])
def test_alone_and_among_31_others_the_same_tokens(server, sampling):
    def one(i):
        return token_ids(server, prompt=QUESTIONS[i], seed=i, **sampling)[0]

    alone = [one(i) for i in range(32)]
    steps = server.metric("halfbyte:iteration_tokens_total_count")
    with concurrent.futures.ThreadPoolExecutor(32) as pool:
        together = list(pool.map(one, range(32)))
    assert server.metric("halfbyte:iteration_tokens_total_count") - steps < 32 * TOKENS / 2, \
        "they did not share steps"
    assert together == alone
    assert len(set(map(tuple, alone))) > 16


def test_a_prefix_hit_gives_the_tokens_of_a_cold_run(server):
    text = " ".join(QUESTIONS) * 3
    prompt = server.json("/tokenize", {"prompt": text})["tokens"][:1100]
    assert len(prompt) == 1100
    fields = {"prompt": prompt, "temperature": 0}
    cold, usage = token_ids(server, cache_salt="a", **fields)
    assert usage["prompt_tokens_details"]["cached_tokens"] == 0
    hit, usage = token_ids(server, cache_salt="a", **fields)
    assert usage["prompt_tokens_details"]["cached_tokens"] == 1024
    other, usage = token_ids(server, cache_salt="b", **fields)
    assert usage["prompt_tokens_details"]["cached_tokens"] == 0
    assert cold == hit == other
