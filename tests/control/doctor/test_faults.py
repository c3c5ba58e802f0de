"""Faults that keep an engine from starting, each recognised from what a machine or a folder really has when it has it."""

import json
from dataclasses import replace

import numpy as np
import pytest
from safetensors.numpy import save_file

from tidegate.config import Settings
from tidegate.control.doctor import faults_gpu, faults_logs, faults_model, faults_settings, faults_system
from tidegate.control.doctor.faults_gpu import Holder
from tidegate.control.doctor.findings import Level
from tidegate.engines.model_facts import ERNIE_CONFIG, from_config
from tidegate.errors import SettingError
from tidegate.gpus import Gpu

GIB = 1 << 30
ERNIE = from_config(ERNIE_CONFIG, name="ernie-4.5-0.3b")
L4 = Gpu(
    "GPU-1",
    name="NVIDIA L4",
    memory_bytes=int(22.5 * GIB),
    free_bytes=22 * GIB,
    used_bytes=0,
    compute=(8, 9),
    processes=(),
)
T4 = replace(L4, name="Tesla T4", memory_bytes=int(14.6 * GIB), free_bytes=14 * GIB, compute=(7, 5))
SYSTEM = faults_system.SystemFacts(
    glibc=(2, 36), shared_bytes=8 * GIB, container=False, threads=None, cores=8, memory_nodes=1, compiler=True
)
FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


@pytest.fixture
def folder(tmp_path):
    """A small model, whole."""
    (tmp_path / "config.json").write_text(json.dumps(ERNIE_CONFIG))
    for name, tensor in ((FIRST, "a"), (SECOND, "b")):
        save_file({tensor: np.zeros(100, np.float32)}, tmp_path / name)
    index = {"metadata": {}, "weight_map": {"a": FIRST, "b": SECOND}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    (tmp_path / "tokenizer.json").write_text("{}")
    (tmp_path / "tokenizer_config.json").write_text('{"chat_template": "{{ messages }}"}')
    return tmp_path


def config(**changes):
    return lambda path: (path / "config.json").write_text(json.dumps({**ERNIE_CONFIG, **changes}))


def cut(path):
    whole = (path / FIRST).read_bytes()
    (path / FIRST).write_bytes(whole[: len(whole) // 2])


def pointer(path):
    (path / FIRST).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0123\nsize 721496064\n")


def only_pickled(path):
    for name in (FIRST, SECOND, "model.safetensors.index.json"):
        (path / name).unlink()
    (path / "pytorch_model.bin").write_bytes(b"PK")


def only_gguf(path):
    (path / "config.json").unlink()
    (path / "model-Q8_0.gguf").write_bytes(b"GGUF")


def check(folder, **more):
    return list(faults_model.check(faults_model.gather(folder), **more))


def test_a_folder_that_is_whole_is_said_to_be(folder):
    (finding,) = check(folder)
    assert finding.level is Level.OK
    assert "whole for vLLM" in finding.text


@pytest.mark.parametrize(
    ("break_it", "words"),
    [
        (lambda path: (path / SECOND).unlink(), f"the index names {SECOND}, not there"),
        (
            lambda path: [(path / name).unlink() for name in (SECOND, "model.safetensors.index.json")],
            f"the other files' names count {SECOND}, not there",
        ),
        (cut, "half of it arrived"),
        (pointer, "is Git's pointer, not the weights"),
        (lambda path: (path / FIRST).write_bytes(b""), "is empty"),
        (lambda path: (path / FIRST).write_bytes(b"\xff" * 80), "is no safetensors file"),
        (lambda path: (path / FIRST).write_bytes((9).to_bytes(8, "little") + b"{broken}!"), "has a damaged header"),
        (lambda path: (path / "model.safetensors.index.json").write_text("{"), "index.json cannot be read"),
        (only_pickled, "only pickled weights"),
        (only_gguf, "config.json cannot be read: it is not there"),
        (lambda path: (path / "config.json").write_text("[]"), "it is no JSON object"),
        (config(architectures=["Ernie4_5_ForCausalLM"]), "an older spelling that vLLM does not know"),
        (config(architectures=["Ernie4_5ForCausalLm"]), "does not know the architecture Ernie4_5ForCausalLm"),
        (config(architectures=["QWenLMHeadModel"]), "vLLM dropped QWenLMHeadModel after 0.23.0"),
        (config(architectures=["FancyForCausalLM"], auto_map={"AutoConfig": "c.F"}), "brings code of its own"),
        (config(num_hidden_layers=0), "has a size of 0"),
        (lambda path: (path / "tokenizer.json").unlink(), "there is no tokenizer"),
        (lambda path: (path / "tokenizer_config.json").write_text("{}"), "there is no chat template"),
        (config(torch_dtype="float32"), "weights are float32"),
        (config(torch_dtype="floot16"), "has the dtype 'floot16', which is none"),
    ],
)
def test_what_is_wrong_with_a_folder_is_found(folder, break_it, words):
    break_it(folder)
    (finding,) = check(folder)
    assert finding.level is not Level.OK
    assert words in finding.text
    assert finding.advice


def test_the_right_name_of_an_architecture_is_proposed(folder):
    config(architectures=["Ernie4_5_ForCausalLM"])(folder)
    assert "write Ernie4_5ForCausalLM there" in check(folder)[0].advice
    config(architectures=["Ernie4_5ForCausalLM"])(folder)
    assert check(folder)[0].level is Level.OK
    config(architectures=["Ernie4_5ForCausalLm"])(folder)
    assert "Ernie4_5ForCausalLM" in check(folder)[0].advice


def test_an_engine_older_than_the_model_is_found(folder):
    (finding,) = check(folder, version="0.6.3")
    assert "vLLM 0.6.3 is older than Ernie4_5ForCausalLM" in finding.text


def test_bfloat16_weights_on_an_old_card_are_told(folder):
    (finding,) = check(folder, compute=(7, 5))
    assert "a GPU of compute capability 7.5 does not have" in finding.text
    assert check(folder, compute=(8, 0))[0].level is Level.OK


def test_a_folder_that_is_not_there_is_one_finding(tmp_path):
    (finding,) = check(tmp_path / "none")
    assert finding.level is Level.PROBLEM


def of_gpu(gpu, driver="580.95.05", holders=None, *, installed=True, ours=frozenset()):
    found = faults_gpu.check([gpu], driver, holders or {}, ours=ours, installed=installed, model=ERNIE)
    return list(found)


def test_a_card_that_is_well_has_no_fault():
    assert of_gpu(L4) == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"driver": "535.183.01"}, "driver 535.183.01 is too old for CUDA 13"),
        ({"gpu": replace(L4, name="Tesla P4", compute=(6, 1))}, "has compute capability 6.1, and vLLM"),
        ({"gpu": T4}, "no bfloat16, no FlashAttention"),
        ({"gpu": replace(L4, used_bytes=9 * GIB)}, "9.0 GiB of NVIDIA L4 are held, and no process is to be seen"),
        ({"gpu": replace(L4, free_bytes=GIB)}, "does not fit on NVIDIA L4"),
        (
            {"gpu": replace(L4, processes=(77,)), "holders": {77: Holder("VLLM::EngineCore", "zombie", 70)}},
            "process 77 (VLLM::EngineCore) is dead and still holds memory",
        ),
        (
            {"gpu": replace(L4, processes=(77,)), "holders": {77: Holder("VLLM::EngineCore", "sleeping", 1)}},
            "what started it is gone",
        ),
    ],
)
def test_what_is_wrong_with_a_card_is_found(change, words):
    (finding,) = of_gpu(change.pop("gpu", L4), **change)
    assert words in finding.text
    assert finding.advice


def test_our_own_engines_and_a_machine_without_vllm_have_no_problem():
    busy = replace(L4, processes=(77,), free_bytes=GIB, used_bytes=20 * GIB)
    holders = {77: Holder("VLLM::EngineCore", "sleeping", 1)}
    assert of_gpu(busy, holders=holders, ours=frozenset({77})) == []
    assert {one.level for one in of_gpu(T4, "470.1", installed=False)} == {Level.NOTE}
    assert of_gpu(replace(L4, fault="gone")) == []
    assert faults_gpu.gather([replace(L4, processes=(2**22 + 1,))]) == {}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"glibc": (2, 17)}, "glibc 2.17 is too old"),
        ({"glibc": ()}, "not glibc"),
        ({"container": True, "shared_bytes": 64 << 20}, "shared memory of this container is 64.0 MiB"),
        ({"threads": 64}, "OMP_NUM_THREADS is 64 on 8 cores"),
        ({"compiler": False}, "there is no C compiler"),
    ],
)
def test_what_is_wrong_with_the_system_is_found(change, words):
    (finding,) = faults_system.check(replace(SYSTEM, **change), vllm=True, gpu=True)
    assert words in finding.text
    assert finding.advice


def test_a_system_that_is_well_or_has_no_vllm_has_no_problem():
    assert list(faults_system.check(SYSTEM, vllm=True, gpu=True)) == []
    assert "2 nodes" in next(faults_system.check(replace(SYSTEM, memory_nodes=2), vllm=True, gpu=False)).text
    old = replace(SYSTEM, glibc=(2, 17), compiler=False)
    assert [one.level for one in faults_system.check(old, vllm=False, gpu=False)] == [Level.NOTE]
    gathered = faults_system.gather({"OMP_NUM_THREADS": "3"})
    assert gathered.threads == 3
    assert gathered.cores >= 1


def test_the_ends_of_engines_logs_are_read(tmp_path):
    (tmp_path / "chat-0.log").write_text(
        "INFO vLLM API server version 0.32.0\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n"
    )
    (tmp_path / "small-0.log").write_text("llama_model_load: error loading model: unknown model architecture: 'x'\n")
    (tmp_path / "fine-0.log").write_text("INFO vllm is ready\n")
    (tmp_path / "tidegate.log").write_text("CUDA out of memory\n")
    found = list(faults_logs.check(faults_logs.gather(tmp_path)))
    assert [one.text.partition(":")[0] for one in found] == ["chat-0.log", "small-0.log"]
    assert "out of GPU memory" in found[0].text
    assert "upgrade xllamacpp" in found[1].advice
    assert {one.level for one in found} == {Level.NOTE}
    later = (tmp_path / "chat-0.log").stat().st_mtime + 25 * 3600
    assert faults_logs.gather(tmp_path, now_s=later) == ()
    assert faults_logs.gather(tmp_path / "none") == ()


def pools(*options):
    return Settings(
        pool=[{"name": f"p{n}", "model": "m", "engine": "vllm", "options": one} for n, one in enumerate(options)]
    ).pool


def test_flags_of_the_settings_that_do_not_exist_are_found():
    found = list(
        faults_settings.check(
            pools(
                {"args": ["--disable-log-requests", "--max-num-seqs", "4"]},
                {"args": ["--disable-cascade-attn"], "env": {"VLLM_USE_V1": "1", "CUDA_VISIBLE_DEVICES": "0"}},
                {"args": ["--frobnicate"], "python": "/opt/vllm/bin/python"},
            )
        )
    )
    assert [one.level for one in found] == [Level.PROBLEM, Level.NOTE, Level.NOTE]
    assert found[0].text.startswith("pool.1.options.args: --disable-log-requests no longer exists")
    assert "VLLM_USE_V1" in found[2].text


def test_settings_with_such_flags_or_without_such_a_preset_are_refused():
    with pytest.raises(SettingError, match=r"pool\.2\.options\.args: --disable-log-requests no longer exists"):
        faults_settings.refuse(pools({"args": ["--disable-cascade-attn"]}, {"args": ["--disable-log-requests"]}))
    with pytest.raises(SettingError, match=r"pool\.1\.options\.preset: there is no 'turbo'") as refused:
        faults_settings.refuse(pools({"preset": "turbo"}))
    assert "production" in refused.value.hint
    faults_settings.refuse(pools({"preset": "tuned", "env": {"VLLM_USE_V1": "1"}}))
