"""Of which class a request is: the first rule of which everything fits, and whether its key may ask for that."""

import itertools
import random
import sys

import pytest
from msgspec import structs

from tidegate.gateway.classes import Classifier
from tidegate.gateway.intake import CHAT, COMPLETIONS
from tidegate.gateway.quotas import BYTES_PER_TOKEN
from tidegate.types import CLASSES, LONG_FROM_TOKENS, RULES, ClassView, RuleView

PLAIN = {
    "stream": False,
    "tenant": "sales",
    "model": "m",
    "path": CHAT,
    "prompt_tokens": 20,
    "max_tokens": 0,
}
"""A short chat that says nothing of itself."""
BUILT_IN = Classifier(CLASSES, RULES)


def picked(classifier, request_type="", allowed=None, **request):
    return classifier.pick(request_type, allowed, **{**PLAIN, **request}).name


def with_rules(*rules):
    """The operator's rules before those that are built in, as the settings make them."""
    return Classifier((*CLASSES, ClassView("night")), (*rules, *RULES))


@pytest.mark.parametrize(
    ("asked", "got"),
    [
        ("streaming", "interactive"),
        ("interactive", "interactive"),
        ("standard", "standard"),
        ("batch", "batch"),
        ("long", "long"),
        ("", "standard"),
        ("no-such-class", "standard"),
        ("streaming, batch", "standard"),
    ],
)
def test_four_classes_are_built_in_and_a_header_asks_for_them(asked, got):
    assert picked(BUILT_IN, asked) == got


def test_a_long_prompt_is_long_unless_its_header_asks_for_something_else():
    assert picked(BUILT_IN, prompt_tokens=LONG_FROM_TOKENS - 1) == "standard"
    assert picked(BUILT_IN, prompt_tokens=LONG_FROM_TOKENS) == "long"
    assert picked(BUILT_IN, "batch", prompt_tokens=LONG_FROM_TOKENS) == "batch"
    assert picked(BUILT_IN, "streaming", prompt_tokens=10 * LONG_FROM_TOKENS) == "interactive"
    assert picked(BUILT_IN, "no-such-class", prompt_tokens=LONG_FROM_TOKENS) == "long"


FIELDS = [
    ({"stream": True}, {"stream": True}, [{"stream": False}]),
    ({"stream": False}, {"stream": False}, [{"stream": True}]),
    ({"tenant": "sales"}, {"tenant": "sales"}, [{"tenant": "Sales"}, {"tenant": "sales2"}, {"tenant": ""}]),
    ({"model": "m"}, {"model": "m"}, [{"model": "m2"}, {"model": "M"}]),
    ({"path": COMPLETIONS}, {"path": COMPLETIONS}, [{"path": CHAT}, {"path": COMPLETIONS + "/"}]),
    ({"prompt_tokens_from": 100}, {"prompt_tokens": 100}, [{"prompt_tokens": 99}]),
    ({"max_tokens_from": 500}, {"max_tokens": 500}, [{"max_tokens": 499}, {"max_tokens": 0}]),
]


@pytest.mark.parametrize(("field", "fits", "others"), FIELDS, ids=[next(iter(field)) for field, _, _ in FIELDS])
def test_a_rule_of_one_field_holds_for_what_is_that_and_for_nothing_else(field, fits, others):
    classifier = with_rules(RuleView("night", **field))
    assert picked(classifier, **fits) == "night"
    for other in others:
        assert picked(classifier, **other) == "standard"


def test_a_rule_of_the_header_holds_for_that_value_and_for_nothing_else():
    classifier = with_rules(RuleView("night", request_type="nightly"))
    assert [picked(classifier, asked) for asked in ("nightly", "night", "batch", "")] == [
        "night",
        "standard",
        "batch",
        "standard",
    ]


ALL = {
    "request_type": "nightly",
    "stream": True,
    "tenant": "sales",
    "model": "m",
    "path": CHAT,
    "prompt_tokens_from": 100,
    "max_tokens_from": 500,
}
FITS_ALL = {"stream": True, "tenant": "sales", "model": "m", "path": CHAT, "prompt_tokens": 100, "max_tokens": 500}


@pytest.mark.parametrize(
    ("wrong", "asked"),
    [
        ({}, "another"),
        ({}, ""),
        ({"stream": False}, "nightly"),
        ({"tenant": "other"}, "nightly"),
        ({"model": "other"}, "nightly"),
        ({"path": COMPLETIONS}, "nightly"),
        ({"prompt_tokens": 99}, "nightly"),
        ({"max_tokens": 499}, "nightly"),
    ],
)
def test_everything_that_a_rule_says_has_to_fit(wrong, asked):
    classifier = with_rules(RuleView("night", **ALL))
    assert picked(classifier, "nightly", **FITS_ALL) == "night"
    assert picked(classifier, asked, **{**FITS_ALL, **wrong}) == "standard"


def test_the_first_rule_that_fits_holds_in_whatever_order_they_stand():
    rules = [RuleView("night", tenant="sales"), RuleView("batch", model="m"), RuleView("long", stream=False)]
    for order in itertools.permutations(rules):
        assert picked(with_rules(*order)) == order[0].klass
        assert picked(with_rules(*order), tenant="other") == next(r.klass for r in order if r.klass != "night")
        assert picked(with_rules(*order), stream=True) == next(r.klass for r in order if r.klass != "long")


def test_an_operator_s_rule_counts_for_more_than_what_the_client_asks_for():
    classifier = with_rules(RuleView("batch", tenant="sales"))
    assert picked(classifier, "streaming") == "batch"
    assert picked(classifier, "streaming", tenant="other") == "interactive"


def test_a_rule_for_everything_takes_everything():
    classifier = with_rules(RuleView("night"))
    assert {picked(classifier, asked) for asked in ("", "streaming", "batch")} == {"night"}


@pytest.mark.parametrize(
    ("allowed", "asked", "got"),
    [
        (None, "batch", "batch"),
        (frozenset({"batch"}), "batch", "batch"),
        (frozenset({"batch"}), "streaming", "standard"),
        (frozenset({"interactive"}), "streaming", "interactive"),
        (frozenset(), "batch", "standard"),
    ],
)
def test_a_key_that_may_not_have_the_class_it_asks_for_gets_standard(allowed, asked, got):
    assert picked(BUILT_IN, asked, allowed) == got


def test_who_asks_for_a_class_that_its_key_may_not_have_does_not_get_what_a_later_rule_would_give():
    """Else a batch client would become `long` by asking for `interactive`, and nobody could say why."""
    assert picked(BUILT_IN, "streaming", frozenset({"batch"}), prompt_tokens=LONG_FROM_TOKENS) == "standard"


@pytest.mark.parametrize("allowed", [None, frozenset({"standard"}), frozenset()])
@pytest.mark.parametrize("asked", ["", "something"])
def test_what_a_rule_gives_without_being_asked_needs_no_permission(allowed, asked):
    classifier = with_rules(RuleView("night", tenant="sales"))
    assert picked(classifier, asked, allowed) == "night"
    assert picked(BUILT_IN, asked, allowed, prompt_tokens=LONG_FROM_TOKENS) == "long"


def test_a_rule_that_waits_for_the_client_s_word_needs_permission():
    classifier = with_rules(RuleView("night", request_type="nightly", tenant="sales"))
    assert picked(classifier, "nightly", frozenset({"batch"})) == "standard"
    assert picked(classifier, "nightly", frozenset({"night"})) == "night"


def test_a_rule_for_a_class_that_does_not_exist_is_passed_over():
    classifier = with_rules(RuleView("gone", tenant="sales"), RuleView("batch", tenant="sales"))
    assert picked(classifier) == "batch"


def test_without_a_class_named_standard_the_first_one_is_for_what_no_rule_matches():
    classifier = Classifier((ClassView("only"), ClassView("other")), ())
    assert picked(classifier) == "only"
    assert picked(Classifier((ClassView("a"), ClassView("b")), (), default="b")) == "b"


def test_the_class_as_the_settings_made_it_is_what_is_given():
    slow = structs.replace(CLASSES[2], max_wait_s=5.0)
    assert Classifier((*CLASSES[:2], slow), RULES).pick("batch", None, **PLAIN) is slow


@pytest.mark.parametrize(
    ("rules", "looks"),
    [
        (RULES, False),
        ((RuleView("batch", max_tokens_from=1), *RULES), True),
        ((RuleView("batch", request_type="nightly", max_tokens_from=1),), True),
    ],
)
def test_max_tokens_is_read_only_where_a_rule_looks_at_it(rules, looks):
    assert Classifier(CLASSES, rules).asks_tokens is looks


@pytest.mark.parametrize(
    ("rules", "plain_bytes"),
    [
        (RULES, BYTES_PER_TOKEN * LONG_FROM_TOKENS),
        ((RuleView("batch", prompt_tokens_from=50), *RULES), BYTES_PER_TOKEN * 50),
        ((RuleView("batch", request_type="nightly", tenant="sales"), *RULES), BYTES_PER_TOKEN * LONG_FROM_TOKENS),
        ((RuleView("batch", tenant="sales"), *RULES), 0),
        ((RuleView("batch", prompt_tokens_from=50, stream=True), *RULES), 0),
        ((RuleView("batch"), *RULES), 0),
        ((RuleView("batch", request_type="batch"),), sys.maxsize),
        ((), sys.maxsize),
    ],
)
def test_requests_below_a_size_are_standard_without_a_look_at_a_rule(rules, plain_bytes):
    classifier = Classifier(CLASSES, rules)
    assert classifier.plain_bytes == plain_bytes
    if plain_bytes:
        below = min(plain_bytes, 10**9) // BYTES_PER_TOKEN - 1
        assert picked(classifier, prompt_tokens=below) == "standard"


def test_the_shortcut_for_short_requests_never_gives_another_class_than_the_rules():
    """Any rules, any requests that ask for nothing: what is below `plain_bytes` is of the default class."""
    rng = random.Random(7)
    for _ in range(400):
        rules = tuple(
            RuleView(
                rng.choice(["interactive", "batch", "long", "gone"]),
                request_type=rng.choice([None, None, "nightly"]),
                stream=rng.choice([None, None, None, True]),
                tenant=rng.choice([None, None, None, "sales"]),
                prompt_tokens_from=rng.choice([None, 10, 1000]),
                max_tokens_from=rng.choice([None, None, None, 100]),
            )
            for _ in range(rng.randrange(4))
        )
        classifier = Classifier(CLASSES, rules)
        for size in (0, 39, 40, 41, 3999, 4000, 100_000):
            if size < classifier.plain_bytes:
                request = {"stream": True, "max_tokens": 500, "prompt_tokens": size // BYTES_PER_TOKEN}
                assert picked(classifier, **request) == "standard"
