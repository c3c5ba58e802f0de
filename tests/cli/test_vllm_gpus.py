"""Which GPU a replica of vLLM gets, and whether more of them have room."""

import os
from dataclasses import replace

import pytest

from tidegate.cli import own_engines
from tidegate.cli.room import check_room
from tidegate.cli.vllm_parts import VllmParts
from tidegate.config import load
from tidegate.control.plan import Need, make_plan
from tidegate.control.state import ProcessKind, ProcessRecord, Records
from tidegate.engines.base import ModelFiles
from tidegate.errors import ModelError, SettingError
from tidegate.fleet.local import process_id
from tidegate.gpus import Gpu, Reading
from tidegate.home import Home
from tidegate.types import DialectName, ProcessId

GIB = 1024**3


@pytest.fixture
def files(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"x" * 1024)
    return ModelFiles("m", tmp_path, "BF16", "digest")


def gpus(count, **more):
    gpu = Gpu("", memory_bytes=24 * GIB, free_bytes=23 * GIB, compute=(8, 9), processes=())
    return tuple(replace(gpu, id=f"GPU-{number}", name=f"card {number}", **more) for number in range(count))


@pytest.fixture
def parts(tmp_path, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return VllmParts(Home(tmp_path / "home"), read_gpus=lambda: gpus(2))


def specs(files, replicas=1, **more):
    pool = {"name": "p", "model": "m", "engine": "vllm", "replicas": replicas, **more}
    settings = load(None, {"model": [{"name": "m"}], "pool": [pool]}, environ={})
    return make_plan(settings, {Need("m", "safetensors"): files}).replicas


def test_as_many_replicas_as_there_are_free_gpus_have_room_and_one_more_has_not(parts, files):
    check_room(specs(files, 2), parts)
    with pytest.raises(
        ModelError, match=r"p-2 has no GPU: .* card 0 is another replica's; card 1 is another replica's"
    ):
        check_room(specs(files, 3), parts)
    assert parts.taken == {}


def test_a_gpu_that_was_given_is_free_once_its_replica_is_gone_for_good(parts, files):
    parts.taken.update({"p-0": "GPU-0", "q-0": "GPU-1"})
    second = specs(files, 2)[1:]
    with pytest.raises(ModelError, match="p-1 has no GPU"):
        check_room(second, parts)
    parts.released("q-0")
    parts.released("never-had-one")
    check_room(second, parts)


def test_a_pool_may_have_the_gpus_that_it_names_and_each_replica_has_its_own(parts, files):
    assert [spec.gpus for spec in specs(files, 2, gpus=[1, 0])] == [(1,), (0,)]
    check_room(specs(files, 1, gpus=[1]), parts)
    parts.taken["q-0"] = "GPU-1"
    with pytest.raises(ModelError, match=r"p-0 has no GPU: .* card 1 is another replica's"):
        check_room(specs(files, 1, gpus=[1]), parts)
    with pytest.raises(ModelError, match=r"pool 'p' wants GPU 5, and this machine has 0 \(card 0\), 1 \(card 1\)"):
        check_room(specs(files, 1, gpus=[5]), parts)


def test_naming_gpus_is_another_process_and_one_more_gpu_is_none_for_those_that_run(files):
    free, one, two = specs(files), specs(files, gpus=[0]), specs(files, 2, gpus=[0, 1])
    assert free[0].digest != one[0].digest == two[0].digest != two[1].digest


def test_without_a_gpu_or_with_gpus_that_the_settings_choose_the_start_itself_tells(parts, files, monkeypatch):
    parts.read_gpus = lambda: ()
    check_room(specs(files, 9), parts)
    parts.read_gpus = lambda: gpus(1)
    check_room(specs(files, 9, options={"env": {"CUDA_VISIBLE_DEVICES": "0"}}), parts)
    check_room(specs(files, 9, options={"args": ["--tensor-parallel-size", "2"]}), parts)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    check_room(specs(files, 9), parts)


@pytest.mark.parametrize(
    ("pools", "words"),
    [
        ([{"gpus": [0], "replicas": 2}], r"pool\.1\.gpus.* are 1, for 2 replicas"),
        ([{"gpus": [0, 0]}], "GPU 0 is already one of pool 'p0'"),
        ([{"gpus": [0]}, {"gpus": [0]}], r"pool\.2\.gpus.* GPU 0 is already one of pool 'p0'"),
        ([{"gpus": [-1]}], "gpus"),
        ([{"gpus": [0], "engine": "llamacpp"}], 'are for engine = "vllm" on this machine'),
    ],
)
def test_gpus_that_cannot_be_meant_are_refused_before_anything_starts(pools, words):
    written = [{"name": f"p{number}", "model": "m", "engine": "vllm", **pool} for number, pool in enumerate(pools)]
    with pytest.raises(SettingError, match=words):
        load(None, {"model": [{"name": "m"}], "pool": written}, environ={})


def test_gpus_of_engines_that_are_to_be_adopted_count_as_this_pools(tmp_path, monkeypatch):
    """A control that takes over finds their GPUs in use, and is not to plan fewer replicas for that."""
    home = Home(tmp_path / "home")
    home.create()
    monkeypatch.setattr(own_engines.environments, "find", lambda *_: object())
    monkeypatch.setattr(own_engines.nvml, "read", lambda: Reading(gpus(1)))
    settings = load(None, {}, environ={})
    assert own_engines.fitting(settings, None, home) == own_engines.Own("vllm", 1)
    record = ProcessRecord("default-0", ProcessKind.ENGINE, process_id(os.getpid()), "d", dialect=DialectName.VLLM)
    Records.load(home).put(record)
    assert own_engines.fitting(settings, None, home) == own_engines.Own("vllm", 2)
    gone = ProcessId(record.id.pid, record.id.started + 1)
    Records.load(home).put(ProcessRecord("default-0", ProcessKind.ENGINE, gone, "d", dialect=DialectName.VLLM))
    assert own_engines.fitting(settings, None, home) == own_engines.Own("vllm", 1)
