"""What Tidegate tells vLLM is held to the parser of the pinned version itself."""

import itertools
import json
import subprocess
from pathlib import Path

import pytest

from tidegate.engines import plan_types, profiles
from tidegate.engines.install import preload
from tidegate.engines.model_facts import ERNIE_CONFIG, from_config
from tidegate.engines.plan_presets import PRESETS
from tidegate.engines.vllm import ENVIRONMENT, flags_of_ours
from tidegate.engines.vllm_flags import DATA, known

pytestmark = pytest.mark.timeout(240)

GIB = 1024**3
ROOT = Path(__file__).parents[2]
HARDWARE = (
    plan_types.Gpu("Tesla T4", 15 * GIB, 14 * GIB, (7, 5)),
    plan_types.Gpu("NVIDIA A10", 24 * GIB, 22 * GIB, (8, 6)),
    plan_types.Gpu("NVIDIA H200", 141 * GIB, 139 * GIB, (9, 0)),
    plan_types.Cpu(frozenset({"avx2", "lm", "avx", "sse2"}), 2, 24 * GIB, 20 * GIB),
    plan_types.Cpu(frozenset({"avx512_bf16", "avx2", "lm", "avx", "sse2"}), 32, 256 * GIB, 200 * GIB),
)
PARSE = """
import contextlib, io, json, sys
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser
faults = []
for argv in json.load(sys.stdin):
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            make_arg_parser(FlexibleArgumentParser()).parse_args(argv)
    except SystemExit:
        faults.append([argv, said.getvalue()[-400:]])
print("FAULTS " + json.dumps(faults))
"""


def in_environment(vllm, *arguments, stdin=""):
    environ = {
        "PATH": "/usr/bin:/bin",
        "HF_HUB_OFFLINE": "1",
        "HOME": str(Path.home()),
        **preload(vllm.folder, vllm.made.kind),
    }
    ran = subprocess.run(
        [vllm.python, *arguments], input=stdin, env=environ, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    return ran.stdout


def test_the_parser_takes_every_plan_and_what_is_always_given(vllm):
    ernie = from_config(ERNIE_CONFIG | {"architectures": ["Ernie4_5_ForCausalLM"]}, name="ernie")
    plans = [profiles.plan(ernie, hardware, preset=preset) for hardware, preset in itertools.product(HARDWARE, PRESETS)]
    fp8 = plan_types.Wishes(context_tokens=4096, sequences=16, memory_share=0.5, fp8="both")
    plans.append(profiles.plan(ernie, HARDWARE[2], wishes=fp8))
    argvs = {
        (*flags_of_ours("ernie", "127.0.0.1", 8000, 3), "--generation-config", "/m", *plan.argv()) for plan in plans
    }
    told = in_environment(vllm, "-c", PARSE, stdin=json.dumps([["--model", "/m", *argv] for argv in argvs]))
    assert json.loads(told.partition("FAULTS ")[2]) == []
    assert {name for plan in plans for name in (one.name for one in plan.environment) if name.startswith("VLLM_")} <= {
        *known().environment
    }
    assert {name for name in ENVIRONMENT if name.startswith("VLLM_")} <= {*known().environment}


def test_the_flags_that_are_known_here_are_those_of_the_pinned_version(vllm):
    assert vllm.made.version == known().version
    told = in_environment(vllm, str(ROOT / "scripts" / "vllm_flags.py"))
    found, kept = json.loads(told), json.loads(DATA.read_text())
    assert {flag["names"][0] for flag in found["flags"]} == {flag["names"][0] for flag in kept["flags"]}
    assert found["environment"] == kept["environment"]
