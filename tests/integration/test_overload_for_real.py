"""Two real llama.cpp engines with three times as much batch work as they have slots, and short chats on top."""

import asyncio
import contextlib
import os
import socket
import time
from pathlib import Path

import httpx

from demo import NAME, demo_files
from tidegate.config import LlamaCppOptions
from tidegate.engines.llamacpp import LlamaCppEngine
from tidegate.engines.process import Place
from tidegate.fleet import local
from tidegate.gateway.app import Gateway
from tidegate.types import FleetSnapshot, ModelView, ProcessId, ReplicaState, ReplicaView

SLOTS = 2
BATCH = 3 * 2 * SLOTS
BATCH_TOKENS = 64
CHATS = 6
DEADLINE_S = 50.0


@contextlib.asynccontextmanager
async def engine(model: Path, folder: Path, name: str):
    options = LlamaCppOptions(slots=SLOTS, context_tokens=512, threads=1)
    place = Place(name, local.spawn, folder, folder / f"{name}.log", dict(os.environ))
    one = LlamaCppEngine(demo_files(model), options, place)
    await one.start()
    try:
        await one.ready()
        yield one
    finally:
        await one.stop(5.0)


def view(one: LlamaCppEngine, name: str) -> ReplicaView:
    return ReplicaView(
        id=name,
        pool="pool",
        model="m",
        url=one.url,
        dialect=one.dialect,
        state=ReplicaState.READY,
        served_name=NAME,
        api_key=one.api_key,
        slots=SLOTS,
    )


@contextlib.asynccontextmanager
async def serving(*views: ReplicaView):
    """A gateway with the settings that it has by default, and its URL."""
    snapshot = FleetSnapshot(1, models=(ModelView("m"),), replicas=views)
    gateway = Gateway(snapshot, listen_host="127.0.0.1", process=ProcessId(1, 1))
    listening = socket.create_server(("127.0.0.1", 0))
    await gateway.server.start(listening)
    gateway.observer.begin(gateway.fleet.replicas.values())
    try:
        yield gateway, f"http://127.0.0.1:{listening.getsockname()[1]}/v1/chat/completions"
    finally:
        await gateway.close(1.0)
        await gateway.server.close()
        listening.close()


class Asker:
    """A client that comes again when it is told to."""

    def __init__(self, http: httpx.AsyncClient, url: str) -> None:
        self._http, self._url = http, url
        self.refusals = 0

    async def ask(self, kind: str, text: str, tokens: int) -> tuple[float, float]:
        """When the answer began, and when it was whole."""
        body = {"model": "m", "stream": True, "max_tokens": tokens, "messages": [{"role": "user", "content": text}]}
        deadline = time.monotonic() + DEADLINE_S
        while True:
            async with self._http.stream("POST", self._url, json=body, headers={"x-request-type": kind}) as answer:
                if answer.status_code == 200:
                    lines = answer.aiter_lines()
                    await anext(lines)
                    began, rest = time.monotonic(), [line async for line in lines if line]
                    assert rest[-1] == "data: [DONE]"
                    return began, time.monotonic()
                assert answer.status_code == 429
                assert int(answer.headers["retry-after"]) >= 1
                wait_s = int(answer.headers["retry-after-ms"]) / 1000
                self.refusals += 1
            assert time.monotonic() + wait_s < deadline, "it was told to come again, and again"
            await asyncio.sleep(wait_s)


async def test_every_short_chat_begins_before_the_batch_work_is_done_and_nothing_fails(demo_model, tmp_path):
    async with (
        engine(demo_model, tmp_path, "a") as one,
        engine(demo_model, tmp_path, "b") as two,
        serving(view(one, "pool-0"), view(two, "pool-1")) as (gateway, url),
        httpx.AsyncClient(timeout=DEADLINE_S, trust_env=False) as http,
    ):
        asker = Asker(http, url)
        backlog = [
            asyncio.ensure_future(asker.ask("batch", f"Tell a long story, number {number}.", BATCH_TOKENS))
            for number in range(BATCH)
        ]
        line = gateway.lines.of("m")
        while not len(line.queue):
            await asyncio.sleep(0.001)
        chats = [asyncio.ensure_future(asker.ask("interactive", f"Say {number}.", 4)) for number in range(CHATS)]
        chatted = await asyncio.gather(*chats)
        worked = await asyncio.gather(*backlog)
        replicas = gateway.fleet.replicas.values()
        assert not any(replica.failures or replica.in_flight for replica in replicas)
        assert not any(state.in_flight for state in line.states.values())
    assert max(began for began, _ in chatted) < max(ended for _, ended in worked)
