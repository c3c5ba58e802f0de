"""llama.cpp with the demo model, as control runs it."""

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from pathlib import Path

import httpx
import psutil
import pytest

from demo import NAME, demo_files
from tidegate.config import LlamaCppOptions
from tidegate.engines import readiness
from tidegate.engines.base import ModelFiles
from tidegate.engines.llamacpp import LlamaCppEngine
from tidegate.engines.llamacpp_fit import Machine
from tidegate.engines.process import Place
from tidegate.errors import EngineStartError, ModelError
from tidegate.fleet import local
from tidegate.types import DialectName

GRACE_S = 5.0
OPTIONS = LlamaCppOptions(slots=2, context_tokens=1024)
QUESTION = {"messages": [{"role": "user", "content": "Tell me a story."}], "temperature": 0}


def place(folder: Path) -> Place:
    return Place("default-0", local.spawn, folder, folder / "default-0.log", dict(os.environ))


@contextlib.asynccontextmanager
async def running(model: Path, folder: Path, options: LlamaCppOptions = OPTIONS):
    engine = LlamaCppEngine(demo_files(model), options, place(folder))
    await engine.start()
    try:
        yield engine, await engine.ready()
    finally:
        await engine.stop(GRACE_S)


def client(engine: LlamaCppEngine) -> httpx.AsyncClient:
    return httpx.AsyncClient(
        base_url=engine.url,
        headers={"authorization": f"Bearer {engine.api_key}"},
        timeout=60,
        trust_env=False,
        limits=httpx.Limits(max_keepalive_connections=0),  # the server closes them when it likes
    )


async def busy_slots(http: httpx.AsyncClient) -> int:
    return sum(slot["is_processing"] for slot in (await http.get("/slots")).json())


async def until(condition, what: str, deadline_s: float = 20.0) -> None:
    end = time.monotonic() + deadline_s
    while not await condition():
        assert time.monotonic() < end, what
        await asyncio.sleep(0.01)


async def test_ready_after_a_real_answer_with_slots_context_and_version(demo_model, tmp_path):
    """Readiness is an answered token; what the engine says of itself is what it was asked to be."""
    async with running(demo_model, tmp_path) as (engine, facts):
        assert (facts.slots, facts.context_tokens, facts.served_name) == (2, 1024, NAME)
        assert facts.version == demo_files(demo_model).digest
        assert facts.started_s > 0
        assert engine.dialect is DialectName.LLAMACPP
        async with client(engine) as http:
            metrics = (await http.get("/metrics")).text
            predicted = [line for line in metrics.splitlines() if line.startswith("llamacpp:tokens_predicted_total ")]
            assert predicted == ["llamacpp:tokens_predicted_total 1"]


async def test_streams_an_answer_under_its_serving_name(demo_model, tmp_path):
    """Chunks come one token at a time, end with [DONE], and never show the path of the file."""
    async with running(demo_model, tmp_path) as (engine, _), client(engine) as http:
        body = {**QUESTION, "model": NAME, "stream": True, "max_tokens": 8}
        answer = await http.post("/v1/chat/completions", json=body)
        events = [line.removeprefix("data: ") for line in answer.text.splitlines() if line]
        assert events[-1] == "[DONE]"
        texts = [json.loads(event)["choices"][0]["delta"].get("content") for event in events[:-1]]
        assert sum(bool(text) for text in texts) == 8
        models = await http.get("/v1/models")
        assert str(demo_model) not in answer.text + models.text
        assert models.json()["data"][0]["id"] == NAME


async def test_a_request_without_the_key_is_refused(demo_model, tmp_path):
    """Other programs of this machine cannot use the engine past the gateway; its key is in no file once it is ready."""
    async with running(demo_model, tmp_path) as (engine, _):
        async with httpx.AsyncClient(base_url=engine.url, trust_env=False) as http:
            assert (await http.post("/v1/chat/completions", json=QUESTION)).status_code == 401
            assert (await http.get("/slots")).status_code == 401
        assert [path.name for path in tmp_path.iterdir()] == ["default-0.log"]
        command = Path(f"/proc/{engine.child.id.pid}/cmdline").read_text()
        assert engine.api_key not in command


async def test_connections_that_are_kept_open_do_not_shut_others_out(demo_model, tmp_path):
    """Every connection holds a thread of the server; many idle ones, and requests in its queue, leave it answering."""
    async with (
        running(demo_model, tmp_path) as (engine, _),
        client(engine) as http,
        contextlib.AsyncExitStack() as stack,
    ):
        host, port = engine.url.removeprefix("http://").split(":")
        for _ in range(60):
            _, writer = await asyncio.open_connection(host, int(port))
            stack.callback(writer.close)
        assert (await http.get("/health", timeout=5)).status_code == 200


async def test_a_closed_stream_frees_its_slot(demo_model, tmp_path):
    """The client of a stream goes away: its slot is free long before the answer would have ended."""
    async with running(demo_model, tmp_path) as (engine, _), client(engine) as http:
        body = {**QUESTION, "stream": True, "max_tokens": 900, "ignore_eos": True}
        async with http.stream("POST", "/v1/chat/completions", json=body) as answer:
            lines = answer.aiter_lines()
            while '"content":"' not in await anext(lines):
                pass
            assert await busy_slots(http) == 1

        async def free() -> bool:
            return await busy_slots(http) == 0

        await until(free, "the slot is still busy", deadline_s=5.0)
        predicted = [
            line for line in (await http.get("/metrics")).text.splitlines() if "tokens_predicted_total " in line
        ]
        assert int(predicted[-1].split()[1]) < 900


@pytest.mark.parametrize("prompt_words", [2, 700], ids=["decoding", "prefill"])
async def test_sigterm_ends_it_at_once_whatever_it_is_doing(demo_model, tmp_path, prompt_words):
    """A stream, or a prompt in prefill, does not hold up its end; its status is 0."""
    async with running(demo_model, tmp_path) as (engine, _), client(engine) as http:
        child = engine.child
        body = {
            "messages": [{"role": "user", "content": "tree " * prompt_words}],
            "stream": True,
            "max_tokens": 300,
            "ignore_eos": True,
        }
        asking = asyncio.create_task(http.post("/v1/chat/completions", json=body))
        log = tmp_path / "default-0.log"
        process = psutil.Process(child.id.pid)
        idle_s = process.cpu_times().user

        async def computing() -> bool:  # /slots does not answer during a prefill; CPU time tells
            return process.cpu_times().user > idle_s + 0.1

        await until(computing, "it never began")
        began = time.monotonic()
        await engine.stop(GRACE_S)
        assert time.monotonic() - began < GRACE_S
        assert await child.wait() == 0
        assert not child.alive()
        with pytest.raises(httpx.TransportError):
            await asking
        assert "Traceback" not in log.read_text()


async def test_a_killed_engine_is_noticed_and_can_be_started_again(demo_model, tmp_path):
    """`child.wait` tells the signal, and the same engine starts anew on another port."""
    async with running(demo_model, tmp_path) as (engine, _):
        first = engine.url
        os.kill(engine.child.id.pid, signal.SIGKILL)
        assert await asyncio.wait_for(engine.child.wait(), 5) == -signal.SIGKILL
        with pytest.raises(httpx.TransportError):
            await httpx.AsyncClient(trust_env=False).get(first + "/health")
        await engine.start()
        await engine.ready()
        async with client(engine) as http:
            assert (await http.get("/health")).status_code == 200


async def test_one_killed_while_it_starts_is_told_with_its_cause(demo_model, tmp_path):
    """It dies before it is ready: one error that names the signal's likely meaning."""
    engine = LlamaCppEngine(demo_files(demo_model), OPTIONS, place(tmp_path))
    await engine.start()
    waiting = asyncio.create_task(engine.ready())
    os.kill(engine.child.id.pid, signal.SIGKILL)
    with pytest.raises(EngineStartError, match=r"default-0 ended before it was ready \(signal 9\).*memory"):
        await waiting
    await engine.stop(GRACE_S)
    assert [path.name for path in tmp_path.iterdir()] == ["default-0.log"]


async def test_it_lives_on_without_its_parent(demo_model, tmp_path):
    """A process found again by its id answers as before, and ends when it is told."""
    parent = tmp_path / "parent.py"
    parent.write_text(PARENT)
    source = [sys.executable, str(parent), str(demo_model), str(tmp_path)]
    starting = await asyncio.create_subprocess_exec(*source, stdout=asyncio.subprocess.PIPE, env=dict(os.environ))
    told, _ = await starting.communicate()
    assert starting.returncode == -signal.SIGKILL
    found = json.loads(told)
    child = local.adopt(local.process_id(found["pid"]))
    assert child is not None
    try:
        async with readiness.client(found["url"], found["key"]) as http:
            await readiness.one_token(http, "smollm2-135m")
    finally:
        await child.stop(GRACE_S)
    assert local.read_stat(found["pid"]) is None or not local.is_alive(child.id)


PARENT = """
import asyncio, json, os, signal, sys
from pathlib import Path
from tidegate.config import LlamaCppOptions
from tidegate.engines.base import ModelFiles
from tidegate.engines.llamacpp import LlamaCppEngine
from tidegate.engines.process import Place
from tidegate.fleet import local

async def main():
    folder = Path(sys.argv[2])
    files = ModelFiles(name="smollm2-135m", path=Path(sys.argv[1]), quantisation="Q4_1", digest="x")
    place = Place("default-0", local.spawn, folder, folder / "default-0.log", dict(os.environ))
    engine = LlamaCppEngine(files, LlamaCppOptions(slots=2, context_tokens=1024), place)
    await engine.start()
    await engine.ready()
    print(json.dumps({"pid": engine.child.id.pid, "url": engine.url, "key": engine.api_key}), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


async def test_a_cut_file_is_refused_before_anything_starts(demo_model, tmp_path):
    """A GGUF file that was cut is one clear error, and no process."""
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(demo_model.read_bytes()[:50_000_000])
    engine = LlamaCppEngine(demo_files(cut), OPTIONS, place(tmp_path))
    with pytest.raises(ModelError, match="not a whole GGUF file"):
        await engine.start()
    assert engine.child is None


async def test_a_file_that_only_llamacpp_finds_broken_is_told_with_its_words(demo_model, tmp_path):
    """What passes our look at the header and fails in llama.cpp ends as its last lines and the cause."""
    data = demo_model.read_bytes()
    strange = tmp_path / "strange.gguf"
    strange.write_bytes(data.replace(b"llama", b"lxyza"))
    files = ModelFiles(name="strange", path=strange, quantisation="Q4_1", digest="x")
    engine = LlamaCppEngine(files, OPTIONS, place(tmp_path))
    await engine.start()
    with pytest.raises(EngineStartError, match=r"default-0 ended before it was ready \(exit status 3\)") as raised:
        await engine.ready()
    await engine.stop(GRACE_S)
    assert "architecture" in raised.value.cause
    assert any("could not be loaded" in line for line in raised.value.log_tail)


async def test_a_model_that_does_not_fit_is_refused_with_the_arithmetic(demo_model, tmp_path):
    """Too little memory: the sum, what there is, and what would fit; nothing is started."""
    poor = Machine(cores=2, available_bytes=400 * 1024 * 1024)
    options = LlamaCppOptions(slots=8, context_tokens=4096)
    engine = LlamaCppEngine(demo_files(demo_model), options, place(tmp_path), machine=poor)
    with pytest.raises(
        ModelError, match=r"does not fit in memory: .* weights 92 MiB \+ KV cache 8 slots x 4,096"
    ) as raised:
        await engine.start()
    assert "would fit" in raised.value.hint
    assert engine.child is None
