"""The wire format of OpenAI's API."""

import contextlib
import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tidegate import openai
from tidegate.errors import BadRequest, NotFound, TooLarge
from tidegate.openai import event_data, read_fields, split_events, typed, whole_events
from tidegate.types import ModelView

TEXT = st.text(max_size=8)
KEYS = st.text(st.sampled_from('ab"\\/盘😀\n\u2028 :,{}'), max_size=4)
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(10**6), 10**6), TEXT),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(KEYS, inner, max_size=3)),
    max_leaves=6,
)
SPACES = st.text(st.sampled_from(" \t\r\n"), max_size=2)


def escaped(text: str, choose) -> str:
    """A JSON string that means `text`, some characters written as escapes."""
    out = []
    for character in text:
        if choose(st.booleans()):
            units = character.encode("utf-16-be")
            out += [f"\\u{units[at] << 8 | units[at + 1]:04x}" for at in range(0, len(units), 2)]
        else:
            out.append(json.dumps(character, ensure_ascii=False)[1:-1])
    return f'"{"".join(out)}"'


def written(pairs, draw) -> bytes:
    """A JSON object of these pairs, with random spaces and escapes."""
    space = lambda: draw(SPACES)  # noqa: E731 - one word for what is drawn between all tokens
    members = [
        f"{space()}{escaped(key, draw)}{space()}:{space()}{json.dumps(value, ensure_ascii=draw(st.booleans()))}{space()}"
        for key, value in pairs
    ]
    return f"{space()}{{{','.join(members) or space()}}}{space()}".encode()


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(KEYS, VALUES, max_size=5), st.data())
def test_an_object_is_read_as_any_parser_reads_it(fields, data):
    body = written(fields.items(), data.draw)
    read = read_fields(body)
    assert {key: json.loads(bytes(raw)) for key, raw in read.items()} == json.loads(body) == fields


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(KEYS, VALUES, min_size=1, max_size=5), VALUES, st.data())
def test_a_key_that_comes_twice_is_refused_however_it_is_spelled(fields, other, data):
    key = data.draw(st.sampled_from(sorted(fields)))
    value = data.draw(st.sampled_from([fields[key], other]))
    pairs = list(fields.items())
    pairs.insert(data.draw(st.integers(0, len(pairs))), (key, value))
    with pytest.raises(BadRequest) as caught:
        read_fields(written(pairs, data.draw))
    assert (caught.value.code, caught.value.param) == ("duplicate_key", key)


@pytest.mark.parametrize(
    "body",
    [b'{"a":1,"a":1}', b'{"a":1,"a":12}', b'{"a":12,"a":1}', b'{"a":1,"b":2,"\\u0061":3}', b'{"":1,"":2}',
     b'{"a":"x","a":"x,y"}', b'{"a":[1],"a":[1,2]}', '{"盘":1,"\\u76d8":2}'.encode(), b'{"a":{"a":1},"a":2}'],
)  # fmt: skip
def test_keys_that_come_twice(body):
    with pytest.raises(BadRequest, match="twice"):
        read_fields(body)


def test_equal_keys_of_different_objects_are_no_duplicates():
    assert set(read_fields(b'{"a":{"a":1,"b":[{"a":2}]},"b":{"a":1}}')) == {"a", "b"}


@given(st.binary(max_size=60))
def test_whatever_comes_is_read_or_refused(body):
    with contextlib.suppress(BadRequest):
        read_fields(body)
        assert isinstance(json.loads(body), dict)


@pytest.mark.parametrize(
    ("body", "words"),
    [(b"", "not a JSON object"), (b"1", "not a JSON object"), (b'{"a":1}x', "not a JSON object"), (b"\xff{}", "JSON"),
     (b'{"a":"\xff"}', "not UTF-8 at byte 6"), (b'{"a":' + b"[" * 10_000, "the body is"), (b'\xef\xbb\xbf{"a":1}', "not a JSON object")],
)  # fmt: skip
def test_what_is_no_json_object_is_said_to_be_none(body, words):
    with pytest.raises(BadRequest, match=words) as caught:
        read_fields(body)
    assert caught.value.code == "invalid_json"


@pytest.mark.parametrize(
    ("raw", "kind", "value"), [(b"1", int, 1), (b"null", int, None), (b"true", bool, True), (b'"x"', str, "x")]
)
def test_a_field_is_decoded_as_its_kind(raw, kind, value):
    assert typed(read_fields(b'{"f":%b}' % raw), "f", kind, "it") == value
    assert typed({}, "f", kind, "it") is None


@pytest.mark.parametrize(("raw", "kind"), [(b'"1"', int), (b"1.5", int), (b"true", int), (b"1", bool), (b"1", str)])
def test_a_field_of_another_kind_is_refused_by_name(raw, kind):
    with pytest.raises(BadRequest) as caught:
        typed(read_fields(b'{"f":%b}' % raw), "f", kind, "what it should be")
    assert (caught.value.param, caught.value.message) == ("f", "f has to be what it should be")


# events

EVENTS = st.lists(
    st.text(st.sampled_from("ab: 盘😀data"), min_size=1, max_size=6).map(lambda text: f"data: {text}"), max_size=5
)


@pytest.mark.parametrize("ending", ["\n", "\r\n", "\r"])
@given(events=EVENTS, cut=st.integers(0, 200))
def test_whole_events_are_what_ends_before_a_cut(ending, events, cut):
    pieces = [(event + ending * 2).encode() for event in events]
    data = b"".join(pieces)
    at = min(cut, len(data))
    end = whole_events(data[:at])
    borders = [sum(map(len, pieces[:count])) for count in range(len(pieces) + 1)]
    assert end == max(border for border in borders if border <= at)
    assert split_events(data[:end]) == [event[6:].encode() for event in events[: borders.index(end)]]


@given(st.binary(max_size=80), st.integers(0, 80))
def test_cutting_never_loses_a_byte_or_an_event(data, cut):
    end = whole_events(data)
    assert 0 <= end <= len(data)
    first = whole_events(data[:cut])
    assert first <= max(end, first)
    assert whole_events(data[:end]) == end


def test_comments_and_other_fields_are_no_data():
    assert split_events(b": hello\n\nevent: x\nid: 1\ndata: a\ndata:b\n\n\n\ndata\n\n") == [b"a\nb"]
    assert event_data(b"data:  two spaces") == b" two spaces"


# bodies


@pytest.mark.parametrize("kind", [BadRequest, NotFound, TooLarge])
def test_an_error_body_has_the_four_fields_that_clients_read(kind):
    error = kind("说明", code="some_code", param="model")
    body: dict[str, Any] = json.loads(openai.error_body(error))
    assert body == {"error": {"message": "说明", "type": kind.type, "param": "model", "code": "some_code"}}
    event = openai.error_event(error)
    assert event.endswith(b"\n\n")
    assert json.loads(event_data(event)) == body


def test_a_model_says_what_is_known_of_it():
    assert openai.model_object(ModelView("m"), None, 7) == {
        "id": "m", "object": "model", "created": 7, "owned_by": "tidegate"}  # fmt: skip
    whole = openai.model_object(ModelView("m", aliases=("a",)), 8, 7)
    assert (whole["aliases"], whole["max_model_len"]) == (["a"], 8)
