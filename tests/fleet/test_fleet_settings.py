"""Where replicas run is a setting; what does not fit together is said before anything starts."""

import importlib.util

import pytest

from tidegate.config import load
from tidegate.control.plan import make_plan, with_defaults
from tidegate.errors import SettingError

BASE = {"name": "p", "model": "m", "engine": "fake"}


def read(pool, **more):
    return load(None, {"pool": [{**BASE, **pool}], **more}, {})


@pytest.mark.parametrize(
    ("pool", "setting", "words"),
    [
        ({"fleet": "dns"}, "pool.1.fleet", "external"),
        ({"fleet": "ray", "engine": "external", "urls": ["http://h:1"]}, "pool.1.fleet", "run already"),
        ({"fleet": "dns", "engine": "external"}, "pool.1.dns.name", "is missing"),
        (
            {"fleet": "dns", "engine": "external", "urls": ["http://h:1"], "dns": {"name": "h:1"}},
            "pool.1.urls",
            "not for fleet",
        ),
        ({"fleet": "dns", "engine": "external", "dns": {"name": "h"}}, "pool.1.dns.name", "a name and a port"),
        ({"fleet": "dns", "engine": "external", "dns": {"name": "h:99999"}}, "pool.1.dns.name", "a name and a port"),
        ({"replicas_min": 2}, "pool.1.replicas_max", "is missing"),
        ({"replicas_max": 2}, "pool.1.replicas_min", "is missing"),
        ({"replicas_min": 3, "replicas_max": 2}, "pool.1.replicas_min", "more than"),
        (
            {"engine": "external", "urls": ["http://h:1"], "replicas_min": 1, "replicas_max": 2},
            "pool.1.replicas_min",
            "not ours",
        ),
        ({"fleet": "slurm"}, "pool.1.fleet", "local"),
    ],
)
def test_what_does_not_fit_together_names_the_setting(pool, setting, words):
    with pytest.raises(SettingError) as caught:
        read(pool)
    assert caught.value.setting == setting
    assert words in str(caught.value)


@pytest.mark.parametrize("address", ["", "10.0.0.5", "10.0.0.5:", ":6379", "10.0.0.5:0", "ray"])
def test_an_address_of_no_cluster_is_refused(address):
    with pytest.raises(SettingError, match=r"ray\.address"):
        read({}, ray={"address": address})


def test_without_ray_a_pool_on_it_is_refused_and_nothing_else_is(monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None if name == "ray" else found(name, *more))
    read({})
    with pytest.raises(SettingError, match=r"pip install 'tidegate\[ray\]'|not installed"):
        read({"fleet": "ray"})


def test_a_replica_at_a_name_is_called_after_its_address():
    settings = with_defaults(read({"fleet": "dns", "engine": "external", "dns": {"name": "h:8000"}}))
    urls = ("http://10.0.0.2:8000", "http://[fd00::1]:8000")
    plan = make_plan(settings, {}, addresses={"p": urls})
    assert {spec.id: spec.url for spec in plan.replicas} == dict(
        zip(["p-10-0-0-2-8000", "p-fd00--1-8000"], urls, strict=True)
    )
    assert make_plan(settings, {}).replicas == ()
    fewer = make_plan(settings, {}, addresses={"p": urls[1:]})
    assert fewer.replicas[0].digest == plan.replicas[1].digest  # the same replica, whatever came or went before it


def test_what_a_replica_takes_of_the_cluster_is_part_of_what_it_is_started_with():
    found = importlib.util.find_spec("ray")
    if found is None:
        pytest.skip("Ray is not installed: pip install 'tidegate[ray]'")
    digests = set()
    for needs in ({"cpus": 1.0}, {"cpus": 2.0}, {"gpus": 1.0}):
        plan = make_plan(with_defaults(read({"fleet": "ray", "ray": needs})), {})
        digests.add(plan.replicas[0].digest)
    assert len(digests) == 3
