"""What is odd about classes, rules and keys is told with its place in the file; what is well is not."""

import pytest

from tidegate.config import load
from tidegate.control.concerns import concerns
from tidegate.types import KeyView, ModelView

FAKE = {"engine": "fake"}
TWO_MODELS = {
    "model": [{"name": "a", "aliases": ["first"]}, {"name": "b"}],
    "pool": [{"name": "pa", "model": "a", **FAKE}, {"name": "pb", "model": "b", **FAKE}],
}


def found(flags, **more):
    return concerns(load(None, flags, {}), **more)


def rules(*given):
    return {"rule": [{"class": "batch", **one} for one in given]}


@pytest.mark.parametrize(
    "flags",
    [
        {},
        rules({"stream": True}, {"stream": False, "tenant": "x"}),
        rules({"prompt_tokens_from": 100}, {"prompt_tokens_from": 50}),
        rules({"tenant": "x", "stream": True}, {"tenant": "x"}),
        rules({"max_tokens_from": 10}, {"tenant": "x"}),
        rules({"path": "/v1/embeddings"}, {"path": "/tokenize"}, {"request_type": "urgent"}),
        {"gateway": {"extra_paths": ["/v1/x"]}, **rules({"path": "/v1/x"})},
        {**TWO_MODELS, **rules({"model": "FIRST"}, {"model": "b"})},
        {**TWO_MODELS, "class": [{"name": "batch", "pools": ["pb", "pa"]}]},
        {"class": [{"name": "batch", "pools": ["default"]}]},
        {"model": [{"name": "ernie-4.5-0.3b"}], **rules({"model": "baidu/ERNIE-4.5-0.3B-PT"})},
        {"class": [{"name": "interactive", "max_wait_s": 0}]},
    ],
)
def test_what_is_well_is_not_mentioned(flags):
    assert found(flags) == ()


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (
            rules({"tenant": "x"}, {"stream": True}, {"tenant": "x", "stream": False}),
            "rule.3: can never match: rule.1 takes every request that it would",
        ),
        (
            rules({"prompt_tokens_from": 50}, {"prompt_tokens_from": 100}),
            "rule.2: can never match: rule.1 takes every request that it would",
        ),
        (
            rules({"stream": True}, {"stream": False}, {"tenant": "x"}),
            "rule.3: can never match: rule.1 and rule.2 take every request that it would",
        ),
        (
            rules({"request_type": "Urgent"}, {"request_type": "urgent", "tenant": "x"}),
            "rule.2: can never match: rule.1 takes every request that it would",
        ),
        (
            {**TWO_MODELS, **rules({"model": "first"}, {"model": "A", "stream": True})},
            "rule.2: can never match: rule.1 takes every request that it would",
        ),
        (rules({}), "rule.1: matches whatever comes to it, so that X-Request-Type"),
        (
            {**TWO_MODELS, **rules({"model": "c"})},
            "rule.1.model: there is no model named 'c', so that it can never match; there are: a, b",
        ),
        (rules({"path": "/v1/chat"}), "rule.1.path: /v1/chat is no path of an engine, so that it can never match"),
        (
            {"class": [{"name": "batch", "pools": ["slow"]}]},
            "class.1.pools: there is no pool named 'slow'; there are: default",
        ),
        (
            {"class": [{"name": "batch", "pools": ["default", "default"]}]},
            "class.1.pools: 'default' is named 2 times; only the first has an effect",
        ),
        (
            {**TWO_MODELS, "class": [{"name": "batch", "pools": ["pa"]}]},
            "class.1.pools: none of them serves the model 'b', for which this class then has no pool",
        ),
        (
            {"class": [{"name": "interactive", "first_token_s": 0.01}]},
            "class.1.first_token_s: a first token within 10 ms cannot be: no engine takes less than 20 ms",
        ),
        (
            {"class": [{"name": "batch", "max_wait_s": 0}]},
            "class.1.max_wait_s: 0 with yields refuses all of its requests",
        ),
        (
            {"class": [{"name": "batch", "max_tokens": 9, "max_tokens_most": 5}]},
            "class.1.max_tokens: 9 is cut to max_tokens_most (5)",
        ),
    ],
)
def test_what_is_odd_is_told_with_its_place(flags, expected):
    told = found(flags)
    assert len([one for one in told if one.startswith(expected)]) == 1, told
    assert len([one for one in told if "pools" not in one]) <= 1, told


def test_a_rule_for_a_model_whose_class_has_pools_of_others_only_is_told():
    flags = {**TWO_MODELS, "class": [{"name": "batch", "pools": ["pa"]}], **rules({"stream": True}, {"model": "b"})}
    assert "rule.2: is for the model 'b', and class 'batch' has pools of other models only (pa)" in found(flags)


def test_a_target_below_what_was_measured_is_told_of_built_in_classes_too():
    flags = {"class": [{"name": "premium", "first_token_s": 0.2}]}
    assert found(flags, floor_s=0.19) == ()
    told = found(flags, floor_s=0.8)
    assert told[0].startswith("class 'interactive' (built in): a first token within 500 ms is not to be had: here it")
    assert told[1].startswith(
        "class.1.first_token_s: a first token within 200 ms is not to be had: here it takes 800 ms"
    )


def test_keys_that_name_what_is_not_there_are_told_by_their_name():
    key = KeyView("d", "anna", "sales", classes=("batch", "gone"), models=("first", "c"))
    assert found(TWO_MODELS, keys=[key]) == (
        "key 'anna': may ask for the class 'gone', which does not exist; there are: batch, interactive, long, standard",
        "key 'anna': may ask for the model 'c', which does not exist",
    )


def test_before_a_model_has_a_name_nothing_is_said_of_names_and_afterwards_it_is():
    flags = {**rules({"model": "ernie"}), "class": [{"name": "batch", "pools": ["default"]}]}
    assert found(flags) == ()
    assert found(flags, models=[ModelView("ernie-4.5-0.3b", ("ernie",))]) == ()
    (told,) = found(flags, models=[ModelView("smollm2-135m", ("demo",))])
    assert told.startswith("rule.1.model: there is no model named 'ernie'")


def test_a_key_that_may_not_ask_for_the_class_that_a_rule_is_to_give_its_tenant_is_told():
    given = {"class": [{"name": "premium"}], "rule": [{"class": "premium", "tenant": "sales"}]}
    assert found(given, keys=[KeyView("d", "anna", "sales")]) == ()  # nobody has to ask
    flags = {**given, "rule": [{"class": "premium", "tenant": "sales", "request_type": "fast"}]}
    (told,) = found(flags, keys=[KeyView("d", "anna", "sales"), KeyView("e", "bert", "ops")])
    assert told.startswith("key 'anna': rule.1 is for its tenant, but it may not ask for the class 'premium'")
    assert found(flags, keys=[KeyView("d", "anna", "sales", classes=("premium",))]) == ()
