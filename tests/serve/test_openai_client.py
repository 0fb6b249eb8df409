"""The openai package of PyPI drives every route it knows."""
import json
import subprocess

import openai
import pytest

from served import MODEL, PROGRAM

DOG = "The number of cat is 123. The number of dog is 456. What is the number of dog?"


def generate(*arguments):
    """What `halfbyte generate` says: one sequence, a loop of its own, no engine."""
    line = [PROGRAM, "generate", str(MODEL), *map(str, arguments), "--temperature", "0", "--json"]
    return json.loads(subprocess.run(line, capture_output=True, text=True, check=True).stdout)


def ask(client, model, **fields):
    settings = {"model": model, "messages": [{"role": "user", "content": DOG}],
                "temperature": 0, "max_tokens": 40}
    return client.chat.completions.create(**settings | fields)


def complete(client, model, **fields):
    settings = {"model": model, "prompt": "Once upon a time", "temperature": 0, "max_tokens": 16}
    return client.completions.create(**settings | fields)


def test_models(client, model):
    found = client.models.retrieve(model)
    assert found.id == model and found.object == "model" and found.owned_by == "halfbyte"
    assert found.max_model_len > 0
    assert found.halfbyte["precision"].startswith("nvfp4")
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("nobody")
    assert caught.value.code == "model_not_found"


def test_a_completion_is_what_generate_says(client, model):
    answer = complete(client, model, extra_body={"return_token_ids": True})
    alone = generate("--prompt", "Once upon a time", "--max-tokens", 16)
    (choice,) = answer.choices
    assert choice.token_ids == alone["token_ids"]
    assert choice.finish_reason == "length" and choice.index == 0
    assert answer.object == "text_completion" and answer.id.startswith("cmpl-")
    assert answer.system_fingerprint.startswith("hb-")
    usage = answer.usage
    assert usage.completion_tokens == 16
    assert usage.total_tokens == usage.prompt_tokens + 16


def test_a_chat_is_what_generate_says(client, model):
    answer = ask(client, model)
    (choice,) = answer.choices
    assert choice.message.content == generate("--chat", DOG, "--max-tokens", 40)["text"]
    assert choice.message.role == "assistant" and choice.finish_reason == "stop"
    assert "456" in choice.message.content


def test_the_pieces_of_a_stream_are_the_answer(client, model):
    whole = complete(client, model, max_tokens=40)
    chunks = list(complete(client, model, max_tokens=40, stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == whole.choices[0].text
    assert chunks[-1].choices[0].finish_reason == "length"
    assert all(chunk.choices[0].finish_reason is None for chunk in chunks[:-1])
    assert len({chunk.id for chunk in chunks}) == 1


def test_a_chat_stream_starts_with_the_role_and_ends_with_the_reason(client, model):
    whole = ask(client, model)
    chunks = list(ask(client, model, stream=True))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == \
        whole.choices[0].message.content
    assert chunks[-1].choices[0].finish_reason == "stop"
    assert all(chunk.object == "chat.completion.chunk" for chunk in chunks)
    assert all(chunk.usage is None for chunk in chunks)


def test_the_usage_chunk_comes_last_without_choices(client, model):
    whole = ask(client, model)
    *chunks, last = ask(client, model, stream=True, stream_options={"include_usage": True})
    assert last.choices == []
    assert last.usage.completion_tokens == whole.usage.completion_tokens
    assert last.usage.prompt_tokens == whole.usage.prompt_tokens
    assert all(chunk.choices and chunk.usage is None for chunk in chunks)


def test_reasoning_stands_beside_the_content(fake):
    client = fake.client()
    thinking = {"extra_body": {"thinking": {"type": "enabled"}}, "max_tokens": 20}
    (choice,) = ask(client, None, **thinking).choices
    assert len(choice.message.reasoning_content) == 20 and choice.message.content == ""
    assert choice.message.reasoning == choice.message.reasoning_content
    pieces = [chunk.choices[0].delta for chunk in ask(client, None, stream=True, **thinking)]
    reasoning = "".join(getattr(piece, "reasoning_content", None) or "" for piece in pieces)
    assert reasoning == choice.message.reasoning_content
    off = {"extra_body": {"thinking": {"type": "disabled"}}, "max_tokens": 20}
    message = ask(client, None, **off).choices[0].message
    assert message.reasoning_content is None and len(message.content) == 20


def test_stop_strings_end_the_text_before_them(client, model):
    text = complete(client, model, max_tokens=40).choices[0].text
    stop = text[10:14]
    end = text.index(stop)
    (choice,) = complete(client, model, max_tokens=40, stop=[stop, "never there"]).choices
    assert (choice.text, choice.finish_reason, choice.stop_reason) == (text[:end], "stop", stop)
    (choice,) = complete(client, model, max_tokens=40, stop=stop,
                         extra_body={"include_stop_str_in_output": True}).choices
    assert choice.text == text[:end] + stop


def test_three_choices_are_numbered_and_repeat_with_their_seed(client, model):
    fields = {"n": 3, "temperature": 1.0, "max_tokens": 12}
    first = complete(client, model, seed=11, **fields)
    again = complete(client, model, seed=11, **fields)
    other = complete(client, model, seed=12, **fields)
    texts = [choice.text for choice in first.choices]
    assert [choice.index for choice in first.choices] == [0, 1, 2]
    assert len(set(texts)) == 3
    assert texts == [choice.text for choice in again.choices]
    assert texts != [choice.text for choice in other.choices]
    streamed = ["", "", ""]
    for chunk in complete(client, model, seed=11, stream=True, **fields):
        for choice in chunk.choices:
            streamed[choice.index] += choice.text
    assert streamed == texts


def test_several_prompts_are_choices_too(client, model):
    prompts = ["Once upon a time", "The number of"]
    answer = complete(client, model, prompt=prompts, n=2, max_tokens=5)
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert answer.choices[0].text == answer.choices[1].text
    assert answer.choices[0].text != answer.choices[2].text
    assert answer.usage.completion_tokens == 20


def test_logprobs_of_a_chat(client, model):
    (choice,) = ask(client, model, logprobs=True, top_logprobs=3).choices
    entries = choice.logprobs.content
    assert b"".join(bytes(entry.bytes) for entry in entries).decode() == choice.message.content
    for entry in entries:
        assert entry.top_logprobs[0].token == entry.token  # greedy
        assert len(entry.top_logprobs) == 3 and entry.logprob <= 0
        values = [top.logprob for top in entry.top_logprobs]
        assert values == sorted(values, reverse=True)
    streamed = []
    for chunk in ask(client, model, logprobs=True, top_logprobs=3, stream=True):
        if chunk.choices[0].logprobs:
            streamed += chunk.choices[0].logprobs.content
    assert streamed == entries


def test_logprobs_of_a_completion(client, model):
    (choice,) = complete(client, model, logprobs=2).choices
    logprobs = choice.logprobs
    assert "".join(logprobs.tokens) == choice.text
    assert logprobs.text_offset[0] == 0 and len(logprobs.token_logprobs) == 16
    assert all(len(top) >= 2 for top in logprobs.top_logprobs)


def test_echo_repeats_the_prompt(client, model):
    (choice,) = complete(client, model, echo=True, max_tokens=0, logprobs=0).choices
    assert choice.text == "Once upon a time"
    assert choice.logprobs.token_logprobs[0] is None
    assert all(value < 0 for value in choice.logprobs.token_logprobs[1:])


def test_a_bias_forces_and_forbids_tokens(server, client, model):
    forced = server.json("/tokenize", {"prompt": "x"})["tokens"][0]
    (choice,) = complete(client, model, logit_bias={str(forced): 100}, max_tokens=4).choices
    assert choice.text == "xxxx"
    free = complete(client, model, extra_body={"return_token_ids": True}).choices[0].token_ids
    bias = {str(token): -100 for token in free}
    banned = complete(client, model, logit_bias=bias, extra_body={"return_token_ids": True})
    assert not set(free) & set(banned.choices[0].token_ids)


@pytest.mark.parametrize("fields, code, param", [
    ({"temperature": 3}, "invalid_value", "temperature"),
    ({"temperature": "warm"}, "invalid_value", "temperature"),
    ({"top_p": 0}, "invalid_value", "top_p"),
    ({"n": 0}, "invalid_value", "n"),
    ({"max_tokens": -1}, "invalid_value", "max_tokens"),
    ({"max_tokens": 10 ** 30}, "invalid_value", "max_tokens"),
    ({"max_tokens": 10 ** 9}, "context_length_exceeded", "max_tokens"),
    ({"stop": ["x"] * 17}, "invalid_value", "stop"),
    ({"logit_bias": {"99999999": 1}}, "invalid_value", "logit_bias"),
    ({"response_format": {"type": "json_object"}}, "unsupported_parameter", "response_format"),
    ({"messages": [{"role": "nobody", "content": "x"}]}, "invalid_value", "messages[0].role"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, None,
     "messages[0].content[0].type"),
])
def test_a_bad_request_names_its_field(client, model, fields, code, param):
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, model, **fields)
    assert caught.value.type == "invalid_request_error"
    assert caught.value.param.startswith(param)
    assert code is None or caught.value.code == code


def test_what_is_not_there_is_404(client, model):
    with pytest.raises(openai.NotFoundError) as caught:
        ask(client, "no-such-model")
    assert caught.value.code == "model_not_found"
    with pytest.raises(openai.NotFoundError) as caught:
        client.embeddings.create(model=model, input="x")
    assert caught.value.code == "route_not_found"


def test_a_name_that_no_api_knows_is_told(client, model):
    answer = client.chat.completions.with_raw_response.create(
        model=model, messages=[{"role": "user", "content": "x"}], max_tokens=1,
        extra_body={"tempreature": 1})
    assert answer.headers["x-halfbyte-ignored"] == "tempreature"
