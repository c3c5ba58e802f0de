from pathlib import Path

import pytest

from tidegate.config import load
from tidegate.control.plan import Need, make_plan, sources, with_defaults
from tidegate.engines.base import ModelFiles
from tidegate.types import Sampling

ERNIE = ModelFiles(
    name="ernie-4.5-0.3b",
    path=Path("/models/ernie.gguf"),
    quantisation="Q8_0",
    digest="abc",
    context_tokens=131_072,
    aliases=("ernie", "baidu/ERNIE-4.5-0.3B-PT"),
)


@pytest.fixture(autouse=True)
def _bare_environment(monkeypatch):
    import os

    for name in [name for name in os.environ if name.startswith("TIDEGATE_")]:
        monkeypatch.delenv(name)


def plan(flags, files=None, served=None):
    settings = with_defaults(load(None, flags))
    here = {Need(name): found for name, found in files.items()} if files else dict.fromkeys(sources(settings), ERNIE)
    return make_plan(settings, here, served)


def test_no_settings_mean_one_replica_of_what_auto_finds_under_its_own_names():
    made = plan({})
    assert [(model.name, model.aliases) for model in made.models] == [(ERNIE.name, ERNIE.aliases)]
    assert [(spec.id, spec.engine, spec.model, spec.files) for spec in made.replicas] == [
        ("default-0", "llamacpp", ERNIE.name, ERNIE)
    ]
    assert made.models[0].context_tokens == 131_072


def test_a_model_with_a_name_of_its_own_keeps_it_and_answers_to_the_found_names_too():
    made = plan({"model": [{"name": "helper", "aliases": ["h"], "defaults": {"temperature": 0.3}}]})
    assert made.models[0].name == "helper"
    assert made.models[0].aliases == ("h", "ernie-4.5-0.3b", "ernie", "baidu/ERNIE-4.5-0.3B-PT")
    assert made.models[0].defaults == Sampling(temperature=0.3)


def test_a_found_name_that_another_model_has_is_not_taken_from_it():
    made = plan({"model": [{"name": "helper"}, {"name": "ernie"}]}, {"helper": ERNIE, "ernie": ERNIE})
    assert "ernie" not in made.models[0].aliases
    assert made.models[1].name == "ernie"


def test_every_model_without_a_pool_gets_one():
    made = plan({"model": [{"name": "a/Model:X"}, {"name": "b"}]}, {"a/Model:X": ERNIE, "b": ERNIE})
    assert [spec.id for spec in made.replicas] == ["default-0", "b-0"]


def test_replicas_are_numbered_and_urls_are_replicas():
    made = plan(
        {
            "pool": [
                {"name": "fakes", "model": "m", "engine": "fake", "replicas": 2},
                {
                    "name": "far",
                    "model": "m",
                    "engine": "external",
                    "urls": ["http://10.0.0.1:9/", "http://10.0.0.2:9"],
                },
            ]
        }
    )
    assert [spec.id for spec in made.replicas] == ["fakes-0", "fakes-1", "far-0", "far-1"]
    assert made.replicas[2].url == "http://10.0.0.1:9"
    assert [model.name for model in made.models] == ["m"]


def test_an_external_auto_model_is_called_what_it_calls_itself():
    made = plan(
        {"pool": [{"name": "default", "model": "auto", "engine": "external", "urls": ["http://10.0.0.1:9"]}]},
        served={"auto": "qwen3-8b"},
    )
    assert made.models[0].name == made.replicas[0].model == "qwen3-8b"


def test_the_digest_follows_options_and_weights_and_nothing_else():
    pool = {"name": "default", "model": "auto"}
    one = plan({"pool": [pool]}).replicas[0].digest
    assert plan({"pool": [pool], "log": {"level": "debug"}}).replicas[0].digest == one
    assert plan({"pool": [pool | {"options": {"threads": 1}}]}).replicas[0].digest != one
    other = ModelFiles(ERNIE.name, ERNIE.path, "Q8_0", "def", 131_072, ERNIE.aliases)
    assert plan({"pool": [pool]}, {"auto": other}).replicas[0].digest != one
