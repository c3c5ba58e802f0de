import os

import pytest

from tidegate.config import load
from tidegate.control.reload import Effect, applicable, differences


@pytest.fixture(autouse=True)
def _bare_environment(monkeypatch):
    for name in [name for name in os.environ if name.startswith("TIDEGATE_")]:
        monkeypatch.delenv(name)


POOL = {"name": "p", "model": "m", "engine": "fake"}


def changes(old, new):
    return {change.setting: change for change in differences(load(None, old), load(None, new))}


def test_equal_settings_have_no_differences():
    assert changes({"pool": [POOL]}, {"pool": [POOL]}) == {}


def test_a_change_names_its_setting_both_values_and_what_it_takes():
    found = changes(
        {"gateway": {"listen": "127.0.0.1:8000"}, "log": {"level": "info"}},
        {"gateway": {"listen": "127.0.0.1:9000", "max_headers": 50}, "log": {"level": "debug"}},
    )
    listen = found["gateway.listen"]
    assert (listen.old, listen.new, listen.effect) == ("127.0.0.1:8000", "127.0.0.1:9000", Effect.RESTART)
    assert found["gateway.max_headers"].effect is Effect.LIVE
    assert found["log.level"].effect is Effect.LIVE


def test_models_and_pools_are_matched_by_name_not_by_place():
    other = {"name": "q", "model": "m", "engine": "fake"}
    found = changes({"pool": [POOL, other]}, {"pool": [other, POOL | {"replicas": 2}]})
    assert {name: (change.old, change.new) for name, change in found.items()} == {"pool.p.replicas": (1, 2)}
    assert found["pool.p.replicas"].effect is Effect.REPLICAS


def test_a_model_default_is_live_and_a_model_source_is_not():
    found = changes(
        {"model": [{"name": "m"}]}, {"model": [{"name": "m", "source": "demo", "defaults": {"temperature": 0.1}}]}
    )
    assert found["model.m.defaults.temperature"].effect is Effect.LIVE
    assert found["model.m.source"].effect is Effect.REPLICAS


def test_what_needs_a_restart_is_left_as_it_runs():
    running = load(None, {"gateway": {"max_headers": 20}, "chat": {"history_tokens": 100}})
    new = load(
        None,
        {"gateway": {"listen": "127.0.0.1:9000", "max_headers": 30}, "chat": {"history_tokens": 200}, "pool": [POOL]},
    )
    merged = applicable(running, new)
    assert merged.gateway.listen == "127.0.0.1:8000"
    assert merged.gateway.max_headers == 30
    assert merged.chat.history_tokens == 100
    assert [pool.name for pool in merged.pool] == ["p"]
    assert all(change.effect is Effect.RESTART for change in differences(merged, new))


def test_classes_and_tenants_are_matched_by_name_and_rules_by_place_all_of_them_live():
    old = {
        "class": [{"name": "batch"}, {"name": "premium", "weight": 2}],
        "rule": [{"class": "premium", "stream": True}],
        "tenant": [{"name": "sales"}],
    }
    new = {
        "class": [{"name": "premium", "weight": 3}, {"name": "batch", "weight": 1.0}],
        "rule": [{"class": "batch", "tenant": "x"}, {"class": "premium", "stream": True}],
        "tenant": [{"name": "sales", "max_tokens": 5}],
        "limits": {"kind": "fixed", "sequences": 4},
    }
    found = changes(old, new)
    assert {name: (change.old, change.new) for name, change in found.items()} == {
        "limits.kind": ("adaptive", "fixed"),
        "limits.sequences": (None, 4),
        "class.batch.weight": (None, 1.0),
        "class.premium.weight": (2.0, 3.0),
        "rule.1.class": ("premium", "batch"),
        "rule.1.stream": (True, None),
        "rule.1.tenant": (None, "x"),
        "rule.2.class": (None, "premium"),
        "rule.2.stream": (None, True),
        "tenant.sales.max_tokens": (None, 5),
    }
    assert {change.effect for change in found.values()} == {Effect.LIVE}
    assert applicable(load(None, old), load(None, new)).policy() == load(None, new).policy()


def test_a_class_that_says_nothing_more_is_no_difference_but_its_coming_and_going_is_one():
    """It can be asked for by its name."""
    found = changes({}, {"class": [{"name": "premium"}]})
    assert [(change.setting, change.effect) for change in found.values()] == [("class.premium.pools", Effect.LIVE)]
