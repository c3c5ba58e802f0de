"""Classes, rules, tenants and limits in the settings: what is left out stays as built in, what cannot be is refused."""

import json
import re
from pathlib import Path

import msgspec
import pytest

from tidegate.config import Policy, Settings, explain, load
from tidegate.control.concerns import concerns
from tidegate.errors import SettingError
from tidegate.types import (
    CLASSES,
    LONG_FROM_TOKENS,
    RULES,
    ClassView,
    KeyView,
    LimitOptions,
    RuleView,
    TenantView,
)

DOCUMENT = Path(__file__).parents[1] / "docs" / "classes.md"


def policy(**flags):
    return load(None, flags, {}).policy()


def fault(text, tmp_path):
    file = tmp_path / "tidegate.toml"
    file.write_text(text)
    with pytest.raises(SettingError) as caught:
        load(file, environ={})
    return caught.value


def test_without_settings_there_is_what_is_built_in():
    assert Settings().policy() == Policy(CLASSES, RULES, (), LimitOptions())


def test_a_built_in_class_keeps_what_is_not_given():
    batch = next(one for one in CLASSES if one.name == "batch")
    found = policy(**{"class": [{"name": "batch", "weight": 2, "pools": ["big", "small"]}]})
    assert [one.name for one in found.classes] == [one.name for one in CLASSES]
    assert found.classes[2] == msgspec.structs.replace(batch, weight=2.0, pools=("big", "small"))
    assert found.rules == RULES


def test_what_is_given_may_equal_nothing():
    """0 and false are given; 0 for the target takes it away."""
    given = {"name": "interactive", "first_token_s": 0, "max_wait_s": 0, "yields": False}
    interactive = policy(**{"class": [given]}).classes[0]
    assert (interactive.first_token_s, interactive.max_wait_s, interactive.weight) == (None, 0.0, CLASSES[0].weight)
    batch = policy(**{"class": [{"name": "batch", "yields": False, "least_share": 0}]}).classes[2]
    assert (batch.yields, batch.least_share, batch.weight) == (False, 0.0, CLASSES[2].weight)


def test_every_key_of_a_class_arrives():
    given = {
        "name": "premium",
        "pools": ["a"],
        "weight": 3,
        "max_wait_s": 2,
        "first_token_s": 0.3,
        "most_share": 0.5,
        "least_share": 0.1,
        "yields": True,
        "max_tokens": 100,
        "max_tokens_most": 200,
        "first_byte_timeout_s": 10,
        "stall_timeout_s": 20,
        "total_timeout_s": 30,
        "priority": -2,
    }
    added = policy(**{"class": [given]}).classes[-1]
    assert set(given) == set(ClassView.__struct_fields__)
    assert msgspec.to_builtins(added) == {**given, "pools": ("a",)}


def test_a_class_that_is_added_can_be_asked_for_by_its_name_after_the_rules_of_the_settings():
    rules = policy(**{"class": [{"name": "premium"}], "rule": [{"class": "premium", "tenant": "vip"}]}).rules
    assert rules[:2] == (
        RuleView("premium", tenant="vip", position=1),
        RuleView("premium", request_type="premium"),
    )
    assert rules[2:] == RULES


def test_every_key_of_a_rule_arrives_with_its_place():
    given = {
        "request_type": "Urgent",
        "stream": False,
        "tenant": "销售部",
        "model": "ernie",
        "path": "/v1/embeddings",
        "prompt_tokens_from": 10,
        "max_tokens_from": 20,
    }
    first, second, *_ = policy(rule=[{"class": "long", "stream": True}, {"class": "batch", **given}]).rules
    assert first == RuleView("long", stream=True, position=1)
    assert msgspec.to_builtins(second) == {**given, "klass": "batch", "request_type": "urgent", "position": 2}


def test_the_size_of_a_long_prompt_is_a_setting():
    assert policy(limits={"long_from_tokens": 99}).rules[-1] == RuleView("long", prompt_tokens_from=99)


def test_tenants_and_limits_arrive():
    found = policy(
        tenant=[{"name": "sales", "weight": 2, "max_tokens": 10, "max_tokens_most": 20}, {"name": "ops"}],
        limits={"kind": "fixed", "sequences": 8, "kv_share": 0.5, "queue_requests": 7, "every_s": 5},
    )
    assert found.tenants == (TenantView("sales", 2.0, 10, 20), TenantView("ops"))
    assert found.limits == LimitOptions(kind="fixed", sequences=8, kv_share=0.5, queue_requests=7, every_s=5.0)


def test_the_lists_come_from_variables_too_and_a_section_s_keys_one_by_one():
    environ = {
        "TIDEGATE_CLASS": json.dumps([{"name": "premium", "weight": 9}]),
        "TIDEGATE_RULE": json.dumps([{"class": "premium", "stream": True}]),
        "TIDEGATE_TENANT": json.dumps([{"name": "vip"}]),
        "TIDEGATE_LIMITS__KIND": "threshold",
        "TIDEGATE_LIMITS__RAISE_BY": "1.5",
    }
    explained = explain(None, environ=environ)
    found = explained.settings.policy()
    assert (found.classes[-1].weight, found.rules[0].stream, found.tenants[0].name) == (9.0, True, "vip")
    assert (found.limits.kind, found.limits.raise_by) == ("threshold", 1.5)
    assert explained.unread == ()
    assert explained.origins["class.1.weight"] == "$TIDEGATE_CLASS"
    assert explained.origins["rule.1.class"] == "$TIDEGATE_RULE"


@pytest.mark.parametrize(
    ("text", "setting", "what", "hint"),
    [
        (
            "[[rule]]\nclass='long'\n[[rule]]\nclass='fast'",
            "rule.2.class",
            "there is no class named 'fast'",
            "there are",
        ),
        ("[[rule]]\nclass='bacth'", "rule.1.class", "there is no class named 'bacth'", "did you mean 'batch'?"),
        ("[[rule]]\nstream=true", "rule.1.class", "is missing", ""),
        ("[[rule]]\nklass='batch'", "rule.1.class", "is missing", ""),
        ("[[rule]]\nclass='long'\nmodle='x'", "rule.1.modle", "there is no such setting", "did you mean 'model'?"),
        ("[[rule]]\nclass='long'\nrequest_type='快'", "rule.1.request_type", "is not what a client can send", ""),
        ("[[rule]]\nclass='long'\npath='v1'", "rule.1.path", "is not a path", ""),
        ("[[rule]]\nclass='long'\nprompt_tokens_from=0", "rule.1.prompt_tokens_from", "must be 1 or more", ""),
        ("[rule]\nclass='long'", "rule", "must be written as [[rule]]", ""),
        ("class=1", "class", "must be written as [[class]]", ""),
        ("[[class]]\nname='batch'\nweight=0", "class.1.weight", "must be more than 0", ""),
        ("[[class]]\nname='batch'\nweight=-1", "class.1.weight", "must be more than 0", ""),
        ("[[class]]\nname='Batch'", "class.1.name", "must be lower-case letters", ""),
        ("[[class]]\nname='a'\n[[class]]\nname='a'", "class.2.name", "'a' is the name of class 1 already", "into one"),
        ("[[class]]\nname='a'\nmost_share=1.5", "class.1.most_share", "must be 1.0 or less", ""),
        (
            "[[class]]\nname='a'\nmost_share=0.1\nleast_share=0.2",
            "class.1.most_share",
            "its most share 0.1 is less than its least share 0.2",
            "",
        ),
        ("[[class]]\nname='batch'\nmost_share=0.01", "class.1.most_share", "is less than its least share 0.05", ""),
        (
            "[[class]]\nname='a'\nleast_share=0.5\n[[class]]\nname='b'\nleast_share=0.45\n[[class]]\nname='c'",
            "class.2.least_share",
            "add up to 1.05 (0.05 batch + 0.05 long + 0.5 a + 0.45 b), and there is only 1",
            "make them smaller",
        ),
        ("[[tenant]]\nname='a'\nweight=0", "tenant.1.weight", "must be more than 0", ""),
        ("[[tenant]]\nname='a'\n[[tenant]]\nname='a'", "tenant.2.name", "is the name of tenant 1 already", ""),
        ("[limits]\nkind='fixed'", "limits.sequences", 'is missing; kind = "fixed" needs it', "sequences = 64"),
        ("[limits]\nkind='magic'", "limits.kind", "must be 'adaptive', 'threshold' or 'fixed'", ""),
        ("[limits]\ncache_low=0.9", "limits.cache_low", "0.9 is more than limits.cache_high, 0.85", ""),
        ("[limits]\nwait_low_s=0.3", "limits.wait_low_s", "0.3 is more than limits.wait_high_s, 0.2", ""),
        ("[limits]\nraise_by=1", "limits.raise_by", "must be more than 1", ""),
        ("[limits]\nlower_by=1", "limits.lower_by", "must be less than 1", ""),
    ],
)
def test_what_cannot_be_is_refused_with_the_setting_s_name(tmp_path, text, setting, what, hint):
    error = fault(text, tmp_path)
    assert error.setting == setting
    assert what in str(error)
    assert hint in error.hint


def test_least_shares_may_add_up_to_all_there_is():
    found = policy(**{"class": [{"name": "a", "least_share": 0.9}]})
    assert sum(one.least_share for one in found.classes) == pytest.approx(1.0)


def test_the_document_s_table_of_built_in_classes_is_the_code_s():
    rows = re.findall(
        r"^\| `(\w+)` \| (.+) \|$", DOCUMENT.read_text(encoding="utf-8").partition("in a rule")[0], re.MULTILINE
    )
    assert {name: [cell.strip() for cell in cells.split("|")] for name, cells in rows} == {
        one.name: [
            f"{one.weight:g}",
            f"{one.max_wait_s:g} s",
            "" if one.first_token_s is None else f"{one.first_token_s:g} s",
            f"{one.least_share:g}",
            "yes" if one.yields else "no",
            f"{one.priority}",
        ]
        for one in CLASSES
    }
    assert f"{LONG_FROM_TOKENS} tokens or more" in DOCUMENT.read_text(encoding="utf-8")


def test_the_document_s_examples_are_settings_without_a_concern(tmp_path):
    blocks = re.findall(r"^```toml\n(.*?)^```", DOCUMENT.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    example, limits = [tmp_path / "example.toml", tmp_path / "limits.toml"]
    for file, block in zip((example, limits), blocks, strict=True):
        file.write_text(block, encoding="utf-8")
    key = KeyView("d", "crm", "sales", classes=("premium", "standard", "batch"))
    assert concerns(load(example, environ={}), keys=[key]) == ()
    assert concerns(load(limits, environ={})) == ()
