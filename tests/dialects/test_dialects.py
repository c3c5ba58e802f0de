"""What differs between engines is data, and the same data for each."""

import pytest

from tidegate.dialects import DIALECTS, LLAMACPP, OPENAI, VLLM, Call
from tidegate.types import DialectName


def test_every_dialect_is_there_under_its_name():
    assert set(DIALECTS) == set(DialectName)
    assert all(dialect.name is name for name, dialect in DIALECTS.items())


@pytest.mark.parametrize("dialect", DIALECTS.values(), ids=lambda dialect: dialect.name)
def test_only_paths_of_the_api_are_allowed(dialect):
    assert {"/v1/chat/completions", "/v1/completions"} <= dialect.paths
    assert all(path.startswith("/v1/") and ".." not in path and "%" not in path for path in dialect.paths)
    assert dialect.json_as_stream <= dialect.paths
    assert {"priority", "chat_template"} <= dialect.private_fields


@pytest.mark.parametrize(
    "path",
    ["/v1/load_lora_adapter", "/v1/streams/lookup", "/v1/stream", "/v1/chat/completions/control", "/slots", "/props"],
)
def test_what_only_operators_may_do_is_in_no_dialect(path):
    assert all(path not in dialect.paths for dialect in DIALECTS.values())


def walk(steps, *answers):
    """The calls that steps make, given these answers, and what they return."""
    calls, remaining = [], iter(answers)
    answer = None
    while True:
        try:
            calls.append(steps.send(answer))
        except StopIteration as end:
            return calls, end.value
        answer = next(remaining)


def test_vllm_is_asked_and_answers_in_its_own_shape():
    asked = {"model": "m", "messages": []}
    assert walk(VLLM.tokenize(asked), {"count": 1}) == ([Call("/tokenize", asked)], {"count": 1})
    assert walk(VLLM.detokenize({"tokens": [1]}), {"prompt": "x"}) == (
        [Call("/detokenize", {"tokens": [1]})],
        {"prompt": "x"},
    )


def test_llama_cpp_counts_a_chat_by_its_template_with_tools():
    asked = {"messages": [1], "tools": [2], "add_generation_prompt": False, "model": "m", "temperature": 1}
    calls, answer = walk(LLAMACPP.tokenize(asked), {"prompt": "<s>"}, {"tokens": [1, 2, 3]})
    assert calls == [
        Call("/apply-template", {"messages": [1], "tools": [2], "add_generation_prompt": False}),
        Call("/tokenize", {"content": "<s>", "add_special": True, "parse_special": True}),
    ]
    assert answer == {"count": 3, "tokens": [1, 2, 3]}


def test_llama_cpp_counts_a_text_without_reading_special_tokens_out_of_it():
    calls, _ = walk(LLAMACPP.tokenize({"prompt": "<s>", "add_special_tokens": False}), {"tokens": []})
    assert calls == [Call("/tokenize", {"content": "<s>", "add_special": False, "parse_special": False})]


def test_other_servers_have_no_tokenizer_to_ask():
    assert (OPENAI.tokenize, OPENAI.detokenize) == (None, None)
