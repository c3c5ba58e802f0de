"""`tidegate engines plan` shows flags with reasons for this machine or another, and refuses in plain words."""

import json

import pytest

from tidegate.cli.engines_plan import machine_name, parse_gpu
from tidegate.engines.model_facts import ERNIE_CONFIG
from tidegate.engines.plan_types import Cpu, Gpu
from tidegate.errors import SettingError

L4 = "NVIDIA L4,24GiB,8.9"


def test_a_gpu_elsewhere_is_planned_for_with_reasons_and_arithmetic(tidegate):
    ran = tidegate("engines", "plan", "--preset", "production", "--gpu", L4)
    assert ran.returncode == 0, ran.stderr
    assert "--max-model-len 8192" in ran.stdout
    assert "Ampere or newer" in ran.stdout
    assert "0.92 of 24.0 GiB = 22.1 GiB, less weights 688 MiB" in ran.stdout
    assert "upgrade  rolling or stop-start" in ran.stdout
    assert not tidegate.home.exists()


def test_programs_get_json(tidegate):
    ran = tidegate("engines", "plan", "--gpu", L4, "--memory-share", "0.4", "--fp8", "kv", "--json")
    told = json.loads(ran.stdout)
    assert told["argv"][told["argv"].index("--kv-cache-dtype") + 1] == "fp8"
    assert told["upgrade"]["way"] == "blue-green"
    assert told["memory"]["kv_tokens"] > 100_000
    assert told["hardware"]["name"] == "NVIDIA L4"


def test_this_machine_s_processor_gets_llamacpp(tidegate):
    ran = tidegate("engines", "plan", "--cpu")
    assert ran.returncode == 0, ran.stderr
    assert 'quantisation = "Q8_0"' in ran.stdout
    assert "slots = " in ran.stdout


def test_a_folder_is_read(tidegate):
    (tidegate.here / "tiny").mkdir()
    (tidegate.here / "tiny" / "config.json").write_text(json.dumps({**ERNIE_CONFIG, "num_hidden_layers": 2}))
    told = json.loads(tidegate("engines", "plan", "--model", "tiny", "--gpu", L4, "--json").stdout)
    assert told["model"]["layers"] == 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--gpu", "L4"), "is no GPU"),
        (("--gpu", "L4,24GiB,30GiB,8.9"), "no more can be free"),
        (("--gpu", "P4,8GiB,6.1"), "compute capability 6.1"),
        (("--gpu", L4, "--context-tokens", "200000"), "was trained on contexts of 131,072"),
        (("--gpu", L4, "--model", "nothing"), "there is no model 'nothing'"),
        (("--gpu", L4, "--preset", "turbo"), "there is no 'turbo'"),
        (("--gpu", L4, "--preset", "tuned"), "nothing was tuned yet"),
        (("--gpu", L4, "--version", "0.6.3"), "is older than Ernie4_5ForCausalLM"),
    ],
)
def test_what_cannot_be_is_said_before_anything_starts(tidegate, arguments, words):
    ran = tidegate("engines", "plan", *arguments)
    assert ran.returncode == 2
    assert words in ran.stderr
    assert len(ran.stderr.splitlines()) <= 2


def test_a_gpu_is_read_from_words():
    assert parse_gpu("A, 10GiB, 4 GiB, 12.0") == Gpu("A", 10 << 30, 4 << 30, (12, 0))
    assert parse_gpu("A,80GB,9.0").total_bytes == 80 * 10**9
    for wrong in ("", ",24GiB,8.9", "A,,8.9", "A,1.2.3GiB,8.9", "A,24GiB,8", "A,24XB,8.9"):
        with pytest.raises(SettingError):
            parse_gpu(wrong)


def test_a_tuned_preset_is_kept_by_machine():
    assert machine_name(Gpu("NVIDIA L4", 1, 1, (8, 9))) == "NVIDIA L4"
    assert machine_name(Cpu(frozenset(), 8, 1, 1)) == "cpu-8"
