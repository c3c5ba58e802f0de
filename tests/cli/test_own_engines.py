"""Which engine serves where `--engine` names one of ours, or nobody says."""

import pytest

from tidegate.cli import own_engines
from tidegate.cli.own_engines import Own
from tidegate.cli.up import flags_of
from tidegate.config import load
from tidegate.engines.environments import mark_whole
from tidegate.engines.vllm_releases import Release
from tidegate.errors import SettingError
from tidegate.gpus import Gpu
from tidegate.home import Home

GIB = 1024**3
PORTS = {"gateway": None, "admin": None, "chat": None}
CARDS = (
    Gpu("GPU-0", "L4", 24 * GIB, 22 * GIB),
    Gpu("GPU-1", "L4", 24 * GIB, 1 * GIB),
    Gpu("GPU-2", "L4", 24 * GIB, 22 * GIB),
)


@pytest.fixture
def home(tmp_path):
    """A data folder with vLLM."""
    home = Home(tmp_path)
    folder = home.engines / "vllm-0.32.0"
    folder.mkdir(parents=True)
    mark_whole(folder, Release("0.32.0", "cuda"), python="3.11.7", torch="2.13.0")
    return home


def pools_of(base, own, model=None):
    flags = flags_of(base, model=model, engines=[], ports=PORTS, own=own, lan=False, chat=True, allow_anonymous=False)
    return load(None, {**base.model_dump(mode="json", by_alias=True, include={"model"}), **flags}, {}).pool


def test_one_of_ours_is_named_alone():
    assert own_engines.asked([]) is None
    assert own_engines.asked(["http://127.0.0.1:8100"]) is None
    assert own_engines.asked(["vllm"]) == Own("vllm")
    assert own_engines.asked(["llamacpp"]) == Own("llamacpp")
    with pytest.raises(SettingError, match="one engine of ours, or URLs"):
        own_engines.asked(["vllm", "http://127.0.0.1:8100"])


def test_it_serves_every_model_with_the_options_that_the_file_has_for_it(home):
    base = load(None, {"model": [{"name": "a"}, {"name": "b"}]}, {})
    assert [(one.name, one.model, one.engine) for one in pools_of(base, Own("vllm"))] == [
        ("default", "a", "vllm"),
        ("default-1", "b", "vllm"),
    ]
    pool = {"name": "p", "model": "a", "engine": "vllm", "replicas": 3, "options": {"slots": 7}}
    (found,) = pools_of(load(None, {"model": [{"name": "a"}], "pool": [pool]}, {}), Own("vllm"))
    assert (found.name, found.replicas, found.options) == ("p", 3, {"slots": 7})
    (found,) = pools_of(load(None, {}, {}), Own("vllm"), model="ORG/NAME")
    assert (found.name, found.model, found.engine) == ("default", "auto", "vllm")


def test_where_nobody_says_vllm_gets_a_replica_for_each_free_gpu(home):
    assert own_engines.fitting(load(None, {}, {}), None, home, lambda: CARDS) == Own("vllm", 2)
    assert pools_of(load(None, {}, {}), Own("vllm", 2))[0].replicas == 2


@pytest.mark.parametrize(
    ("settings", "model", "cards"),
    [
        ({}, None, ()),
        ({}, None, CARDS[1:2]),
        ({}, "demo", CARDS),
        ({}, "/models/mine.gguf", CARDS),
        ({"pool": [{"name": "p", "model": "m", "engine": "fake"}]}, None, CARDS),
        ({"model": [{"name": "m", "source": "demo"}]}, None, CARDS),
    ],
)
def test_everything_else_stays_with_what_is_set(home, settings, model, cards):
    assert own_engines.fitting(load(None, settings, {}), model, home, lambda: cards) is None


def test_without_an_installed_vllm_no_driver_is_asked(tmp_path):
    def never():
        raise AssertionError

    assert own_engines.fitting(load(None, {}, {}), None, Home(tmp_path), never) is None
