"""One JSON answer put together from a stream is what the stream said, wherever it was cut."""

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.errors import UpstreamClosedError
from tidegate.gateway.assemble import Assembly

DONE = b"data: [DONE]\n\n"


def stream(*events, ending: bytes = b"\n\n") -> bytes:
    return b"".join(b"data: " + json.dumps(one, ensure_ascii=False).encode() + ending for one in events) + DONE


def delta(index=0, finish=None, **fields):
    return {"id": "c", "created": 5, "model": "m", "object": "chat.completion.chunk",
            "choices": [{"index": index, "delta": fields, "finish_reason": finish}]}  # fmt: skip


def assembled(data: bytes, cuts=(), *, chat: bool = True) -> Assembly:
    assembly = Assembly(chat=chat)
    at = [0, *sorted(cut for cut in cuts if cut < len(data)), len(data)]
    for start, end in itertools.pairwise(at):
        assembly.feed(data[start:end])
    return assembly


TEXTS = st.lists(st.text(max_size=6), max_size=6)
CUTS = st.lists(st.integers(0, 3000), max_size=8)


@given(TEXTS, CUTS, st.sampled_from([b"\n\n", b"\r\n\r\n"]))
def test_the_content_is_all_its_pieces(texts, cuts, ending):
    first = delta(role="assistant", content=None)
    events = [first, *(delta(content=text) for text in texts), delta(finish="stop")]
    assembly = assembled(stream(*events, ending=ending), cuts)
    assert assembly.whole
    answer = json.loads(assembly.answer())
    expected = "".join(texts) if texts else None
    assert answer == {
        "id": "c", "created": 5, "model": "m", "object": "chat.completion",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": expected}, "logprobs": None,
                     "finish_reason": "stop"}],
    }  # fmt: skip


@given(st.lists(st.tuples(st.integers(0, 2), st.text(max_size=4)), max_size=12), CUTS)
def test_several_choices_are_kept_apart_and_in_order(pieces, cuts):
    events = [delta(index, content=text) for index, text in pieces]
    events += [delta(index, finish="length") for index in (2, 0, 1)]
    answer = json.loads(assembled(stream(*events), cuts).answer())
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    for index, choice in enumerate(answer["choices"]):
        assert (choice["message"]["content"] or "") == "".join(text for at, text in pieces if at == index)


@given(CUTS)
def test_tool_calls_are_joined_by_their_index(cuts):
    events = [
        delta(role="assistant", content=None),
        delta(
            tool_calls=[{"index": 0, "id": "call_1", "type": "function", "function": {"name": "天气", "arguments": ""}}]
        ),
        delta(tool_calls=[{"index": 0, "function": {"arguments": '{"城市":'}}]),
        delta(
            tool_calls=[
                {"index": 1, "id": "call_2", "type": "function", "function": {"name": "time", "arguments": "{}"}}
            ]
        ),
        delta(tool_calls=[{"index": 0, "function": {"arguments": '"北京"}'}}]),
        delta(finish="tool_calls"),
    ]
    choice = json.loads(assembled(stream(*events), cuts).answer())["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] is None
    assert choice["message"]["tool_calls"] == [
        {"id": "call_1", "type": "function", "function": {"name": "天气", "arguments": '{"城市":"北京"}'}},
        {"id": "call_2", "type": "function", "function": {"name": "time", "arguments": "{}"}},
    ]


def test_thoughts_and_other_texts_are_joined_too():
    events = [delta(reasoning_content="想"), delta(reasoning_content="一想"), delta(content="好"), delta(finish="stop")]
    message = json.loads(assembled(stream(*events)).answer())["choices"][0]["message"]
    assert message == {"role": "assistant", "content": "好", "reasoning_content": "想一想"}


def test_log_probabilities_are_one_list():
    events = [delta(content=text) for text in "ab"] + [delta(finish="stop")]
    for event, token in zip(events, "ab", strict=False):
        event["choices"][0]["logprobs"] = {"content": [{"token": token, "logprob": -1.0}], "refusal": None}
    choice = json.loads(assembled(stream(*events)).answer())["choices"][0]
    assert [one["token"] for one in choice["logprobs"]["content"]] == ["a", "b"]


def test_a_text_completion_is_its_texts():
    events = [{"id": "t", "choices": [{"index": 0, "text": text, "finish_reason": None}]} for text in ("盘", "古")]
    events.append({"choices": [{"index": 0, "text": "", "finish_reason": "stop", "stop_reason": 2}]})
    answer = json.loads(assembled(stream(*events), chat=False).answer())
    assert answer["object"] == "text_completion"
    assert answer["choices"] == [
        {"index": 0, "text": "盘古", "logprobs": None, "finish_reason": "stop", "stop_reason": 2}]  # fmt: skip


def test_usage_and_timings_of_the_last_event_are_in_the_answer():
    usage = {"choices": [], "usage": {"total_tokens": 3}, "timings": {"predicted_n": 2}}
    answer = json.loads(assembled(stream({**delta(content="a"), "usage": None}, delta(finish="stop"), usage)).answer())
    assert (answer["usage"], answer["timings"]) == ({"total_tokens": 3}, {"predicted_n": 2})


@pytest.mark.parametrize(
    "data",
    [b"", stream(delta(content="a"), delta(finish="stop")).removesuffix(DONE), stream(delta(content="a")), DONE,
     stream(delta(0, finish="stop"), delta(1, content="a"))],
)  # fmt: skip
def test_a_stream_that_ends_early_is_not_whole(data):
    assert not assembled(data).whole


@pytest.mark.parametrize("error", [{"message": "no room", "code": 500}, "no room"])
def test_an_engines_error_inside_the_stream_is_kept(error):
    assembly = assembled(stream(delta(content="a"), {"error": error}))
    assert assembly.error is not None
    assert assembly.error["message"] == "no room"


@given(st.one_of(st.binary(max_size=60), st.text(max_size=30).map(str.encode)))
def test_whatever_an_engine_sends_is_taken_or_its_fault(data):
    assembly = Assembly(chat=True)
    try:
        assembly.feed(b"data: " + data + b"\n\n")
    except UpstreamClosedError:
        return
    assert not assembly.whole
