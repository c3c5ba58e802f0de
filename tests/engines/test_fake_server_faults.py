"""Every fault that the fake engine can commit, as it looks on the wire."""

import asyncio
import json
import time

import httpx
import pytest

from tidegate.engines.fake_schedule import StepCost
from tidegate.engines.fake_server import FakeServer, FakeServerOptions
from tidegate.types import DialectName

CHAT = "/v1/chat/completions"
USER = [{"role": "user", "content": "Hi"}]
QUIET = FakeServerOptions(tokens=6, gap_ms=1)


def http(engine: FakeServer) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=engine.url, timeout=5, trust_env=False)


async def test_half_an_event_then_silence(ask):
    async with FakeServer(QUIET) as engine:
        got = await ask(engine.url, "[[fault:half_event@2]]")
        assert got.text == "词0 词1 "
        assert got.end == "open"
        assert not got.data.endswith(b"\n\n\r\n")
        assert engine.running == 1  # until the client goes away


async def test_silence_between_events(ask):
    async with FakeServer(QUIET) as engine:
        got = await ask(engine.url, "[[fault:stall@1]]")
        assert (got.text, got.end) == ("词0 ", "open")
        assert got.data.endswith(b"\n\n\r\n")


async def test_silence_before_the_first_event(ask):
    async with FakeServer(QUIET) as engine:
        assert (await ask(engine.url, "[[fault:stall@0]]")).text == ""


async def test_only_comments(ask):
    async with FakeServer(QUIET) as engine:
        got = await ask(engine.url, "[[fault:comments@1]]", until=b": ping\n\n\r\n8\r\n")
        assert got.text == "词0 "


@pytest.mark.parametrize(("fault", "end"), [("close", "closed"), ("half_event_close", "closed"), ("reset", "reset")])
async def test_the_connection_ends_in_mid_stream(ask, fault, end):
    async with FakeServer(QUIET) as engine:
        got = await ask(engine.url, f"[[fault:{fault}@2]]")
        assert got.end == end
        assert b"[DONE]" not in got.data
        assert b"0\r\n\r\n" not in got.data
        await until(lambda: engine.running == 0)
        assert engine.counters.aborted == 1


async def test_bytes_that_are_no_chunk(ask):
    async with FakeServer(QUIET) as engine:
        got = await ask(engine.url, "[[fault:bad_chunk@1]]")
        assert b"zz\r\n" in got.data


async def test_an_error_event(ask):
    async with FakeServer(QUIET) as engine:
        got = await ask(engine.url, "[[fault:error_event@1]]", until=b"0\r\n\r\n")
        assert b'data: {"error":{' in got.data


async def test_an_early_end_without_done(ask):
    async with FakeServer(QUIET) as engine:
        got = await ask(engine.url, "[[fault:no_done@2]]", until=b"\r\n0\r\n\r\n")
        assert got.text == "词0 词1 "
        assert b"[DONE]" not in got.data
        assert engine.running == 0


async def test_a_huge_event_in_a_stream_that_goes_on(ask):
    async with FakeServer(QUIET) as engine:
        got = await ask(engine.url, "[[fault:huge_event=300000@1]]", until=b"[DONE]")
        assert got.text == "词0 " + "大" * 100_000 + "词1 词2 词3 词4 词5 "


@pytest.mark.parametrize("size", [1, 2, 7])
async def test_bytes_come_in_pieces_of_any_size(ask, size):
    """Cut anywhere, within an event and within a character, and whole in the end."""
    async with FakeServer(FakeServerOptions(tokens=3)) as engine:
        split = await ask(engine.url, f"[[fault:split={size}]]", until=b"0\r\n\r\n")
        plain = await ask(engine.url, "Hi", until=b"0\r\n\r\n")
        assert split.text == plain.text == "词0 词1 词2 "
        assert len(split.reads) > len(plain.reads) + 10
        whole = await ask(engine.url, f"[[fault:split={size}]]", stream=False)
        assert json.loads(whole.body)["choices"][0]["message"]["content"] == "词0 词1 词2 "
        assert int(_length(whole)) == len(whole.body)


def _length(got) -> bytes:
    return got.data.split(b"content-length: ")[1].split(b"\r\n")[0]


async def test_engine_errors_by_status(ask):
    async with FakeServer(QUIET) as engine:
        for status in (500, 502, 503, 429):
            got = await ask(engine.url, f"[[fault:status={status}]]", until=b"}}")
            assert got.status == status


@pytest.mark.parametrize("dialect", [DialectName.VLLM, DialectName.LLAMACPP])
async def test_context_length_exceeded_in_each_dialect(dialect):
    async with FakeServer(FakeServerOptions(dialect=dialect, context_tokens=512)) as engine, http(engine) as client:
        body = {"messages": [{"role": "user", "content": "[[fault:context_length]]"}]}
        answer = await client.post(CHAT, json=body)
        assert answer.status_code == 400
        error = answer.json()["error"]
        assert "512" in error["message"]
        if dialect is DialectName.LLAMACPP:
            assert (error["type"], error["n_ctx"]) == ("exceed_context_size_error", 512)
            assert error["n_prompt_tokens"] > 512


async def test_no_answer_at_all(ask):
    async with FakeServer(QUIET) as engine:
        got = await ask(engine.url, "[[fault:no_answer]]")
        assert (got.data, got.end) == (b"", "open")


async def test_closed_without_a_byte(ask):
    async with FakeServer(QUIET) as engine:
        got = await ask(engine.url, "[[fault:close_before]]")
        assert (got.data, got.end) == (b"", "closed")


async def test_a_kept_alive_connection_closes_as_the_next_request_is_written(connect):
    """The first request of a connection is answered, the second gets nothing; a new connection is served."""
    async with FakeServer(QUIET) as engine:
        engine.set_fault("close_reused")
        for _ in range(2):
            async with connect(engine.url) as raw:
                raw.send({"messages": USER})
                assert (await raw.read(until=b"}}")).status == 200
                raw.send({"messages": USER})
                got = await raw.read()
                assert got.data == b""
                assert got.end in {"closed", "reset"}


async def test_an_idle_connection_is_closed_as_real_engines_do(connect):
    async with FakeServer(FakeServerOptions(tokens=1, idle_timeout_s=0.1)) as engine, connect(engine.url) as raw:
        raw.send({"messages": USER})
        assert (await raw.read(until=b"}}")).status == 200
        got = await raw.read(silence_s=5)
        assert (got.data, got.end) == (b"", "closed")


async def test_a_head_that_is_no_http(ask):
    async with FakeServer(QUIET) as engine:
        assert not (await ask(engine.url, "[[fault:garbage_head]]")).data.startswith(b"HTTP/")


async def test_a_content_length_beyond_the_body(ask):
    async with FakeServer(QUIET) as engine:
        got = await ask(engine.url, "[[fault:wrong_length=5]]", stream=False)
        assert int(_length(got)) == len(got.body) + 5
        assert got.end == "closed"


@pytest.mark.parametrize("batching", [None, StepCost(1, 0, 0)])
async def test_a_slow_prefill_moves_no_counter(connect, batching):
    """Before the first token, /metrics answers and stands still; then the answer comes whole."""
    async with (
        FakeServer(FakeServerOptions(tokens=2, batching=batching)) as engine,
        http(engine) as client,
        connect(engine.url) as raw,
    ):
        raw.send({"messages": [{"role": "user", "content": "[[fault:slow=300]]"}], "stream": True})
        await raw.read(until=b"\r\n\r\n")
        first = progress((await client.get("/metrics")).text)
        await asyncio.sleep(0.1)
        assert progress((await client.get("/metrics")).text) == first
        assert (await raw.read(until=b"[DONE]")).text == "词0 词1 "


async def test_a_json_answer_may_take_long():
    async with FakeServer(QUIET) as engine, http(engine) as client:
        began = time.monotonic()
        body = {"messages": [{"role": "user", "content": "[[first_ms:150]]"}]}
        assert (await client.post(CHAT, json=body)).status_code == 200
        assert time.monotonic() - began > 0.14


async def test_an_engine_that_hangs_is_healthy_and_makes_no_progress(connect):
    """Running streams stop, new requests wait, /health is 200; cleared, it begins anew."""
    async with FakeServer(FakeServerOptions(tokens=10_000, gap_ms=1)) as engine, http(engine) as client:
        async with connect(engine.url) as raw:
            raw.send({"messages": USER, "stream": True})
            await raw.read(until="词3".encode())
            await client.post("/fake/faults", content="hang")
            await raw.read()
            before = progress((await client.get("/metrics")).text)
            assert (await raw.read()).data == b""
            assert progress((await client.get("/metrics")).text) == before
            assert (await client.get("/health")).status_code == 200
            assert engine.running == 1
            async with connect(engine.url) as other:
                other.send({"messages": USER})
                assert (await other.read()).data == b""
        await client.delete("/fake/faults")
        answer = await client.post(CHAT, json={"messages": USER, "max_tokens": 2})
        assert answer.status_code == 200


async def test_metrics_and_health_may_fail_on_their_own():
    async with FakeServer(QUIET) as engine, http(engine) as client:
        engine.set_fault("metrics_garbage")
        assert b"\xff" in (await client.get("/metrics")).content
        engine.clear_faults()
        engine.set_fault("metrics_status=503")
        assert (await client.get("/metrics")).status_code == 503
        engine.set_fault("health_status=500")
        assert (await client.get("/health")).status_code == 500
        assert (await client.post(CHAT, json={"messages": USER})).status_code == 200
        engine.set_fault("metrics_hang")
        with pytest.raises(httpx.ReadTimeout):
            await client.get("/metrics", timeout=0.2)


async def test_counters_start_again():
    async with FakeServer(QUIET) as engine, http(engine) as client:
        await client.post(CHAT, json={"messages": USER})
        assert engine.counters.generation_tokens == 6
        engine.set_fault("counters_restart")
        assert engine.counters.generation_tokens == 0
        assert engine.faults.all() == []


async def test_a_fault_is_set_over_http_so_many_times():
    async with FakeServer(QUIET) as engine, http(engine) as client:
        fault = {"kind": "status", "number": 503, "count": 1}
        told = (await client.post("/fake/faults", json=fault)).json()
        assert told == [{"kind": "status", "number": 503, "after": 3, "count": 1}]
        statuses = [(await client.post(CHAT, json={"messages": USER})).status_code for _ in range(2)]
        assert statuses == [503, 200]
        assert (await client.post("/fake/faults", content="nonsense")).status_code == 400
        assert (
            await client.post(CHAT, json={"messages": [{"role": "user", "content": "[[fault:x]]"}]})
        ).status_code == 400


async def test_an_engine_that_dies_takes_all_its_connections(connect):
    """Every stream is cut and the port refuses."""
    async with (
        FakeServer(FakeServerOptions(tokens=10_000, gap_ms=1)) as engine,
        connect(engine.url) as first,
        connect(engine.url) as second,
    ):
        first.send({"messages": USER, "stream": True})
        await first.read(until="词1".encode())
        second.send({"messages": [{"role": "user", "content": "[[fault:die@2]]"}], "stream": True})
        ends = [(await raw.read(silence_s=5)).end for raw in (first, second)]
        assert set(ends) <= {"closed", "reset"}
        with pytest.raises(OSError):
            await asyncio.open_connection("127.0.0.1", int(engine.url.rsplit(":", 1)[1]))


def progress(text: str) -> list[str]:
    """The lines of /metrics that count progress."""
    return [line for line in text.splitlines() if "tokens_total" in line]


async def until(condition, deadline_s: float = 10.0) -> None:
    end = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end
        await asyncio.sleep(0.005)
