"""The gateway's client against real sockets."""

import asyncio
import socket
import time
from contextlib import aclosing, asynccontextmanager

import pytest

from apps.scripted import Scripted, running
from tidegate.apps.chat.trouble import Kind, TroubleError
from tidegate.apps.chat.upstream import Upstream

HELLO = [{"role": "user", "content": "hello"}]


@pytest.fixture
def gateway():
    with running(Scripted()) as scripted:
        yield scripted


@asynccontextmanager
async def upstream_of(url, key_file=None):
    upstream = Upstream(url, key_file)
    try:
        yield upstream
    finally:
        await upstream.close()


async def answer(upstream):
    async with aclosing(upstream.stream(HELLO)) as pieces:
        return [piece async for piece in pieces]


async def trouble(upstream):
    with pytest.raises(TroubleError) as caught:
        await answer(upstream)
    return caught.value


async def test_the_first_model_listed_answers_in_pieces(gateway):
    async with upstream_of(gateway.url) as upstream:
        assert await answer(upstream) == gateway.pieces
        assert upstream.known_model == gateway.model


async def test_closing_an_answer_closes_its_connection_within_50_ms(gateway):
    gateway.pieces, gateway.pause_s = ["word "] * 10_000, 0.005
    async with upstream_of(gateway.url) as upstream:
        took = []
        for _ in range(3):
            gateway.closed.clear()
            async with aclosing(upstream.stream(HELLO)) as pieces:
                await anext(pieces)
                left = time.monotonic()
            while not gateway.closed:
                assert time.monotonic() < left + 10
                await asyncio.sleep(0.001)
            took.append(gateway.closed[0] - left)
        assert min(took) < 0.05


async def test_cancelling_the_task_that_reads_an_answer_closes_its_connection(gateway):
    gateway.pieces, gateway.pause_s = ["word "] * 10_000, 0.005
    async with upstream_of(gateway.url) as upstream:
        task = asyncio.create_task(answer(upstream))
        while gateway.sent < 3:
            await asyncio.sleep(0.001)
        task.cancel()
        await asyncio.wait({task})
        deadline = time.monotonic() + 10
        while not gateway.closed:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.001)


async def test_a_new_model_is_found_when_the_old_one_is_gone(gateway):
    async with upstream_of(gateway.url) as upstream:
        await answer(upstream)
        gateway.model = "another"
        assert await answer(upstream) == gateway.pieces
        assert upstream.known_model == "another"


async def test_a_key_that_is_refused_is_read_anew(gateway, tmp_path):
    file = tmp_path / "service.key"
    async with upstream_of(gateway.url, file) as upstream:
        await answer(upstream)
        gateway.keys = ["sk-new"]
        assert (await trouble(upstream)).kind is Kind.KEY
        file.write_text("sk-new\n")
        assert await answer(upstream) == gateway.pieces


@pytest.mark.parametrize(
    ("status", "error", "kind", "passes"),
    [
        (503, {}, Kind.LOADING, True),
        (502, {}, Kind.LOADING, True),
        (429, {}, Kind.BUSY, True),
        (400, {"code": "context_length_exceeded"}, Kind.TOO_LONG, False),
        (400, {"type": "exceed_context_size_error"}, Kind.TOO_LONG, False),
        (400, {"message": "bad temperature"}, Kind.OTHER, False),
        (403, {}, Kind.KEY, False),
        (404, {}, Kind.NO_MODEL, False),
    ],
)
async def test_each_refusal_is_known_for_what_it_is(gateway, status, error, kind, passes):
    gateway.status, gateway.error, gateway.retry_after = status, error, 7
    async with upstream_of(gateway.url) as upstream:
        told = await trouble(upstream)
        assert (told.kind, told.passes) == (kind, passes)
        if kind in {Kind.LOADING, Kind.BUSY}:
            assert told.retry_after_s == 7


async def test_a_stream_that_breaks_is_no_whole_answer(gateway):
    gateway.break_after = 1
    async with upstream_of(gateway.url) as upstream:
        assert (await trouble(upstream)).kind is Kind.BROKEN


async def test_a_gateway_that_is_away_is_known_as_away():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        async with upstream_of(f"http://127.0.0.1:{free.getsockname()[1]}") as upstream:
            assert (await trouble(upstream)).kind is Kind.AWAY
            assert await upstream.count(HELLO) > 0


async def test_tokens_are_counted_by_the_engine_and_estimated_where_it_cannot(gateway):
    async with upstream_of(gateway.url) as upstream:
        gateway.tokens = lambda messages: 1234
        assert await upstream.count(HELLO) == 1234
        gateway.tokens = None
        estimated = await upstream.count(HELLO)
        assert estimated < 20
        gateway.tokens = lambda messages: 1234
        assert await upstream.count(HELLO) == estimated
