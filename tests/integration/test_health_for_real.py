"""llama.cpp under a prompt of many seconds, and asked to go on with its own words."""

import asyncio
import contextlib
import itertools
import json
import os
import signal
import socket
import time
from pathlib import Path

import httpx
import pytest

from demo import NAME, demo_files
from tidegate.config import LlamaCppOptions
from tidegate.dialects.metrics import read_load
from tidegate.engines.continuation import continues
from tidegate.engines.llamacpp import LlamaCppEngine
from tidegate.engines.process import Place
from tidegate.fleet import local
from tidegate.gateway.app import Gateway
from tidegate.gateway.fleet import Replica
from tidegate.gateway.health import Failure
from tidegate.gateway.router import at_home
from tidegate.types import FleetSnapshot, GatewayOptions, ModelView, ProcessId, ReplicaState, ReplicaView

STUCK_S = 1.0
PROMPT = " ".join(f"Item {number} costs {number * 7} coins and weighs {number * 3} stones." for number in range(80))


@contextlib.asynccontextmanager
async def running(model: Path, folder: Path, name: str, slots: int = 1):
    options = LlamaCppOptions(slots=slots, context_tokens=4096, threads=1, batch_tokens=2048, micro_batch_tokens=2048)
    place = Place(name, local.spawn, folder, folder / f"{name}.log", dict(os.environ))
    engine = LlamaCppEngine(demo_files(model), options, place)
    await engine.start()
    try:
        await engine.ready()
        yield engine
    finally:
        await engine.stop(5.0)


def view(engine: LlamaCppEngine, name: str, **options) -> ReplicaView:
    return ReplicaView(
        id=name,
        pool="pool",
        model="m",
        url=engine.url,
        dialect=engine.dialect,
        state=ReplicaState.READY,
        served_name=NAME,
        api_key=engine.api_key,
        **options,
    )


def auth(engine: LlamaCppEngine) -> dict[str, str]:
    return {"authorization": f"Bearer {engine.api_key}"}


@contextlib.asynccontextmanager
async def watching(*views: ReplicaView):
    """A gateway that watches these replicas and prefers the first; and its URL."""
    options = GatewayOptions(stuck_s=STUCK_S)
    snapshot = FleetSnapshot(1, models=(ModelView("m"),), replicas=views, options=options)
    gateway = Gateway(snapshot, listen_host="127.0.0.1", process=ProcessId(1, 1))
    gateway.random = gateway.flights.random = lambda: 0.0
    gateway.observer.look_s = 0.25
    listening = socket.create_server(("127.0.0.1", 0))
    await gateway.server.start(listening)
    gateway.observer.begin(gateway.fleet.replicas.values())
    try:
        yield gateway, f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        await gateway.close(1.0)
        await gateway.server.close()
        listening.close()


@pytest.mark.timeout(240)
@pytest.mark.parametrize("known_pid", [True, False], ids=["a child of ours", "an engine somewhere"])
async def test_a_long_prefill_on_llama_cpp_is_no_reason_to_leave(demo_model, tmp_path, known_pid):
    """All its counters stand still for many times `stuck_s`; its CPU time, or its prompt's length, speaks for it."""
    async with running(demo_model, tmp_path, "a") as one, running(demo_model, tmp_path, "b") as two:
        views = (view(one, "pool-0", pid=one.child.id.pid if known_pid else None), view(two, "pool-1"))
        body = {"model": "m", "messages": [{"role": "user", "content": PROMPT}], "max_tokens": 4}
        states, counters = set(), set()
        async with watching(*views) as (gateway, url), httpx.AsyncClient(timeout=200, trust_env=False) as http:
            replicas = gateway.fleet.replicas.values()
            asking = asyncio.ensure_future(
                http.post(f"{url}/v1/chat/completions", json=body, headers=at_home_at("pool-0", list(replicas)))
            )
            began = time.monotonic()
            while not asking.done():
                states |= {replica.health.out for replica in replicas}
                load = read_load((await http.get(f"{one.url}/metrics", headers=auth(one))).content)
                counters.add((load.prompt_tokens_total, load.generation_tokens_total, load.iterations_total))
                await asyncio.sleep(0.1)
            lasted_s = time.monotonic() - began
            answer = await asking
    assert answer.status_code == 200
    assert answer.headers["x-tidegate-replica"] == "pool-0"
    assert json.loads(answer.content)["usage"]["prompt_tokens"] > 1200
    assert lasted_s > 2 * STUCK_S, "long enough to have been taken for dead"
    assert states == {None}
    assert len(counters) <= 8, counters


@pytest.mark.timeout(240)
async def test_a_frozen_llama_cpp_is_out_until_it_thaws(demo_model, tmp_path):
    """Its port still takes connections, and nothing comes of them."""
    async with running(demo_model, tmp_path, "a", 2) as one, running(demo_model, tmp_path, "b", 2) as two:
        views = (view(one, "pool-0", pid=one.child.id.pid), view(two, "pool-1", pid=two.child.id.pid))
        body = {"model": "m", "messages": [{"role": "user", "content": "Count."}], "max_tokens": 2000, "stream": True}
        async with watching(*views) as (gateway, url), httpx.AsyncClient(timeout=200, trust_env=False) as http:
            replica, other = gateway.fleet.replicas.values()
            async with http.stream("POST", f"{url}/v1/chat/completions", json=body) as stream:
                events = stream.aiter_lines()
                await anext(events)
                assert replica.in_flight == 1
                os.kill(one.child.id.pid, signal.SIGSTOP)
                try:
                    await until(lambda: replica.health.out is Failure.STUCK)
                    assert other.rank == 0
                    asked = {**body, "stream": False, "max_tokens": 2}
                    answer = await http.post(f"{url}/v1/chat/completions", json=asked)
                    assert (answer.status_code, answer.headers["x-tidegate-replica"]) == (200, "pool-1")
                finally:
                    os.kill(one.child.id.pid, signal.SIGCONT)
                await until(lambda: replica.rank == 0)
                await anext(events)


def at_home_at(name: str, replicas: list[Replica]) -> dict[str, str]:
    """The header of a conversation whose home is this replica."""
    homes = ((str(number), at_home(replicas, b"%d" % number)) for number in itertools.count())
    return {"x-session-id": next(key for key, home in homes if home is not None and home.view.id == name)}


async def until(condition, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)


async def test_llama_cpp_is_seen_to_continue_equally_in_chat_and_completions(demo_model, tmp_path):
    async with running(demo_model, tmp_path, "a") as engine:
        assert await continues(engine.url, engine.api_key, engine.dialect, NAME)
        async with httpx.AsyncClient(base_url=engine.url, trust_env=False, headers=auth(engine)) as http:
            load = read_load((await http.get("/metrics")).content)
        assert load.generation_tokens_total
        assert load.prefill_s_total
        assert load.iterations_total
        assert load.running == 0
