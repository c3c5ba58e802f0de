"""What is asked of the next engine, and what its events become: without sockets."""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.errors import UpstreamClosedError
from tidegate.gateway import failover
from tidegate.openai import Usage

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


def fields(**values):
    return msgspec.json.decode(json.dumps({"model": "m", **values}).encode(), type=dict[str, msgspec.Raw])


def said(result):
    return {name: json.loads(bytes(raw)) for name, raw in result.items()}


def chunk(text=None, path=CHAT, **choice):
    holder = {"delta": {} if text is None else {"content": text}} if path == CHAT else {"text": text or ""}
    event = {"id": "chatcmpl-1", "created": 7, "model": "m", "choices": [{"index": 0, **holder, **choice}]}
    return b"data: " + json.dumps(event).encode() + b"\n\n"


ROLE = b'data: {"id":"chatcmpl-1","created":7,"model":"m","choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}\n\n'


@given(st.lists(st.text(min_size=1), max_size=20), st.sampled_from([CHAT, COMPLETIONS]))
def test_the_text_that_was_sent_is_read_back_whole(pieces, path):
    payload = (ROLE if path == CHAT else b"") + b"".join(chunk(piece, path) for piece in pieces)
    sent = failover.read_sent(payload, path)
    assert (sent.text, sent.tokens, sent.role_sent) == ("".join(pieces), len(pieces), path == CHAT)
    assert not sent.odd
    assert not sent.finished


def test_an_event_that_is_no_json_cannot_be_gone_on_from():
    with pytest.raises(UpstreamClosedError):
        failover.read_sent(b"data: {oops\n\n", CHAT)


def test_a_chat_goes_on_from_an_assistant_message_with_the_text_so_far():
    asked = fields(messages=[{"role": "user", "content": "hi"}], max_tokens=10, seed=3)
    sent = failover.read_sent(ROLE + chunk("Hel") + chunk("lo"), CHAT)
    rest = said(failover.continuation(asked, sent, CHAT, flags={"continue_final_message": True}))
    assert rest["messages"] == [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "Hello"}]
    assert (rest["max_tokens"], rest["seed"], rest["continue_final_message"]) == (8, 3, True)


def test_a_chat_that_the_client_began_itself_is_gone_on_with_in_the_same_message():
    asked = fields(messages=[{"role": "user", "content": "hi"}, {"role": "assistant", "content": "Well, "}])
    rest = said(failover.continuation(asked, failover.read_sent(chunk("yes"), CHAT), CHAT, flags={}))
    assert rest["messages"][-1] == {"role": "assistant", "content": "Well, yes"}


def test_a_completion_goes_on_from_prompt_and_text():
    asked = fields(prompt="1, 2,", max_completion_tokens=4)
    rest = said(
        failover.continuation(asked, failover.read_sent(chunk(" 3,", COMPLETIONS), COMPLETIONS), COMPLETIONS, flags={})
    )
    assert (rest["prompt"], rest["max_completion_tokens"]) == ("1, 2, 3,", 3)


def test_nothing_is_left_to_ask_once_max_tokens_were_sent():
    sent = failover.read_sent(chunk("a") + chunk("b"), CHAT)
    assert failover.continuation(fields(messages=[], max_tokens=2), sent, CHAT, flags={}) is None
    assert json.loads(failover.last_event(sent, CHAT))["choices"][0]["finish_reason"] == "length"


def test_an_answer_without_text_is_asked_for_anew_whatever_it_is():
    asked = fields(messages=[{"role": "user", "content": "x"}], n=2, logprobs=True, tools=[{}])
    sent = failover.read_sent(ROLE, CHAT)
    assert failover.can_continue(asked, sent)
    assert said(failover.continuation(asked, sent, CHAT, flags={"x": 1})) == said(asked)


@pytest.mark.parametrize(
    "more",
    [
        {"n": 2},
        {"best_of": 3},
        {"echo": True},
        {"logprobs": 1},
        {"tools": [{"type": "function"}]},
        {"response_format": {"type": "json_schema"}},
        {"grammar": "root ::= x"},
        {"guided_json": {}},
    ],
)
def test_what_the_next_engine_could_not_take_up_is_not_continued(more):
    sent = failover.read_sent(chunk("text"), CHAT)
    assert failover.can_continue(fields(messages=[{"role": "user"}]), sent)
    assert failover.can_continue(fields(messages=[], response_format={"type": "text"}), sent)
    assert not failover.can_continue(fields(messages=[{"role": "user"}], **more), sent)


@pytest.mark.parametrize("delta", [{"tool_calls": [{"index": 0}]}, {"reasoning_content": "hm"}, {"refusal": "no"}])
def test_tool_calls_and_reasoning_in_progress_are_not_continued(delta):
    event = {"choices": [{"index": 0, "delta": delta}]}
    assert failover.read_sent(b"data: " + json.dumps(event).encode() + b"\n\n", CHAT).odd


def going_on(pieces, *, stop=None, before="Hello", path=CHAT):
    asked = fields(messages=[], prompt="", **({"stop": stop} if stop else {}))
    continuation = failover.Continuation(asked, failover.read_sent(ROLE + chunk(before), CHAT), path)
    seen = []
    for piece in pieces:
        event = {"id": "other", "created": 9, "model": "n", "choices": [{"index": 0, "delta": {"content": piece}}]}
        made = continuation.event(json.dumps(event).encode())
        if made is not None:
            seen.append(json.loads(made))
    return continuation, seen


def test_events_take_on_the_identity_of_the_first_ones_and_the_role_is_said_once():
    continuation, seen = going_on([" wor", "ld"])
    assert {(event["id"], event["created"], event["model"]) for event in seen} == {("chatcmpl-1", 7, "m")}
    role = {"id": "o", "choices": [{"index": 0, "delta": {"role": "assistant", "content": None}}]}
    assert continuation.event(json.dumps(role).encode()) is None
    end = {"id": "o", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], "timings": {"a": 1}}
    made = json.loads(continuation.event(json.dumps(end).encode()))
    assert made["choices"][0]["finish_reason"] == "stop"
    assert "timings" not in made


@given(
    text=st.text("abc", min_size=2, max_size=12),
    cut=st.integers(1, 11),
    sizes=st.lists(st.integers(1, 3), min_size=12, max_size=12),
    stop=st.text("abc", min_size=1, max_size=4),
)
def test_a_stop_string_that_straddles_the_seam_ends_the_answer(text, cut, sizes, stop):
    before, after = text[:cut], text[cut:]
    pieces = []
    for size in sizes:
        if after:
            pieces.append(after[:size])
            after = after[size:]
    continuation, seen = going_on(pieces, stop=[stop], before=before)
    straddles = any(text.startswith(stop, at) for at in range(len(before)) if at < len(before) < at + len(stop))
    assert continuation.stopped == straddles
    if straddles:
        assert seen[-1]["choices"][0]["finish_reason"] == "stop"
    else:
        assert "".join(event["choices"][0]["delta"]["content"] for event in seen) == "".join(pieces)


def test_usage_is_that_of_one_answer():
    continuation, _ = going_on([])
    assert continuation.whole_usage(Usage(prompt_tokens=21, completion_tokens=5)) == Usage(20, 6)
    event = {"choices": [], "usage": {"prompt_tokens": 21, "completion_tokens": 5, "total_tokens": 26}}
    assert json.loads(continuation.event(json.dumps(event).encode()))["usage"]["total_tokens"] == 26
