"""The longest answer that an engine is asked for: from the client's word, the class's and the tenant's."""

import json

import msgspec
import pytest

from tidegate.gateway.field_limits import asked_tokens, bound_answer, whole_number
from tidegate.gateway.intake import CHAT, COMPLETIONS, Intake
from tidegate.types import ClassView, TenantView


def intake(path=CHAT, *, defaulted=False, **fields):
    raw = {name: msgspec.Raw(json.dumps(value).encode()) for name, value in fields.items()}
    return Intake(path, None, raw, b"", stream=False, defaulted=defaulted)


def bounded(asked, klass=None, tenant=None):
    """The fields after it was bounded; what is not set is None."""
    bound_answer(asked, ClassView("c", **(klass or {})), None if tenant is None else TenantView("t", **tenant))
    return {name: json.loads(bytes(raw)) for name, raw in asked.fields.items()}


@pytest.mark.parametrize(
    ("text", "number"),
    [
        (b"7", 7),
        (b"0", 0),
        (b"1000000000", 1_000_000_000),
        (b"null", None),
        (b"true", None),
        (b"-1", None),
        (b"1.5", None),
        (b"1e3", None),
        (b'"7"', None),
        (b"[7]", None),
        (b"", None),
    ],
)
def test_only_a_whole_number_is_a_number_of_tokens(text, number):
    assert whole_number(msgspec.Raw(text)) == number


def test_a_number_of_any_length_is_read_in_no_time_and_stays_large():
    assert whole_number(msgspec.Raw(b"9" * 1_000_000)) >= 10**9


@pytest.mark.parametrize(
    ("fields", "tokens"),
    [
        ({}, 0),
        ({"max_tokens": None}, 0),
        ({"max_tokens": 5}, 5),
        ({"max_completion_tokens": 5}, 5),
        ({"max_tokens": None, "max_completion_tokens": 5}, 5),
        ({"max_tokens": 5, "max_completion_tokens": None}, 5),
        ({"max_tokens": 5, "max_completion_tokens": 9}, 9),
        ({"max_tokens": 9, "max_completion_tokens": 5}, 9),
        ({"max_tokens": "5"}, 0),
        ({"max_tokens": 10**18}, 10**9),
    ],
)
def test_what_a_client_asks_for_is_the_most_that_it_says(fields, tokens):
    assert asked_tokens(intake(**fields)) == tokens


def test_nothing_is_touched_where_nothing_is_set():
    for fields in ({}, {"max_tokens": 10**6}, {"max_completion_tokens": None}):
        asked = intake(**fields)
        assert bounded(asked, tenant={}) == fields
        assert not asked.changed


@pytest.mark.parametrize(
    ("klass", "tenant", "got"),
    [
        ({"max_tokens": 50}, None, 50),
        ({}, {"max_tokens": 40}, 40),
        ({"max_tokens": 50}, {"max_tokens": 40}, 40),
        ({"max_tokens": 30}, {"max_tokens": 40}, 30),
        ({"max_tokens": 50}, {}, 50),
        ({"max_tokens_most": 60}, None, 60),
        ({}, {"max_tokens_most": 20}, 20),
        ({"max_tokens": 50, "max_tokens_most": 20}, None, 20),
        ({"max_tokens": 50}, {"max_tokens_most": 20}, 20),
        ({"max_tokens_most": 20}, {"max_tokens": 50}, 20),
        ({"max_tokens": 10, "max_tokens_most": 20}, {"max_tokens_most": 15}, 10),
    ],
)
@pytest.mark.parametrize("silent", ["max_tokens", "max_completion_tokens", None])
def test_who_does_not_say_gets_the_smaller_default_and_never_more_than_the_smaller_most(klass, tenant, got, silent):
    asked = intake(**({silent: None} if silent else {}))
    assert bounded(asked, klass, tenant) == {silent or "max_tokens": got}
    assert asked.changed


@pytest.mark.parametrize(
    ("most", "asks", "got"),
    [
        ({"klass": {"max_tokens_most": 60}}, 59, 59),
        ({"klass": {"max_tokens_most": 60}}, 60, 60),
        ({"klass": {"max_tokens_most": 60}}, 61, 60),
        ({"tenant": {"max_tokens_most": 60}}, 61, 60),
        ({"klass": {"max_tokens_most": 60}, "tenant": {"max_tokens_most": 30}}, 50, 30),
        ({"klass": {"max_tokens_most": 30}, "tenant": {"max_tokens_most": 60}}, 50, 30),
        ({"klass": {"max_tokens": 10}, "tenant": {"max_tokens": 5}}, 50, 50),
        ({"klass": {"max_tokens": 10, "max_tokens_most": 60}}, 50, 50),
        ({"klass": {"max_tokens_most": 60}}, 10**30, 60),
    ],
)
@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_the_client_s_word_holds_up_to_the_most_of_class_and_tenant(most, asks, got, field, path):
    asked = intake(path, **{field: asks})
    assert bounded(asked, **most) == {field: got}
    assert asked.changed is (got != asks)


@pytest.mark.parametrize(
    ("fields", "got"),
    [
        ({"max_tokens": 900, "max_completion_tokens": 800}, {"max_tokens": 60, "max_completion_tokens": 60}),
        ({"max_tokens": 50, "max_completion_tokens": 900}, {"max_tokens": 50, "max_completion_tokens": 60}),
        ({"max_tokens": 900, "max_completion_tokens": 50}, {"max_tokens": 60, "max_completion_tokens": 50}),
        ({"max_tokens": None, "max_completion_tokens": 900}, {"max_tokens": 60, "max_completion_tokens": 60}),
    ],
)
def test_who_says_it_twice_has_neither_of_them_above_the_most(fields, got):
    """Whichever the engine goes by, saying a small number beside a large one is no way around the bound."""
    assert bounded(intake(**fields), {"max_tokens_most": 60}) == got


@pytest.mark.parametrize(
    ("klass", "got"),
    [
        ({"max_tokens": 50}, 50),
        ({"max_tokens": 90}, 90),
        ({"max_tokens_most": 60}, 60),
        ({"max_tokens_most": 80}, 70),
        ({"max_tokens": 90, "max_tokens_most": 80}, 80),
    ],
)
def test_a_model_s_default_of_70_gives_way_to_that_of_the_class_and_is_cut_like_a_word_of_the_client(klass, got):
    assert bounded(intake(max_tokens=70, defaulted=True), klass) == {"max_tokens": got}


@pytest.mark.parametrize("path", ["/v1/embeddings", "/v1/rerank", "/v1/responses"])
def test_what_makes_no_chat_or_completion_is_left_alone(path):
    asked = intake(path, input="x")
    assert bounded(asked, {"max_tokens": 5, "max_tokens_most": 5}, {"max_tokens_most": 1}) == {"input": "x"}
    assert not asked.changed


def test_other_fields_stay_as_they_are():
    asked = intake(messages=[{"role": "user", "content": "hi"}], temperature=0.5, n=2, max_tokens=99)
    before = dict(asked.fields)
    bounded(asked, {"max_tokens_most": 60})
    assert bytes(asked.fields.pop("max_tokens")) == b"60"
    before.pop("max_tokens")
    assert asked.fields == before
