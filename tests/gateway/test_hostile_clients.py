"""What clients may send on purpose or by mistake, through a whole gateway: an engine sees none of it, others are served."""

import asyncio
import itertools
import json
import time

import pytest

from gateway.byte_engine import DONE, LAST_CHUNK, STREAM_HEAD, chunk, event, streams
from tidegate.config.sections import GatewaySettings
from tidegate.http import Limits
from tidegate.types import GatewayOptions, Outcome

CHAT = "/v1/chat/completions"
BODY = b'{"model":"m","messages":[{"role":"user","content":"hi"}]}'
POST = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
SOUND = POST + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY
AMBIGUOUS = {
    "Content-Length together with Transfer-Encoding": POST
    + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "two lengths": POST + b"Content-Length: %d\r\nContent-Length: 3\r\n\r\n" % len(BODY) + BODY,
    "a bare LF in the head": POST.replace(b"localhost\r\n", b"localhost\n") + b"Content-Length: 0\r\n\r\n",
    "a space before the colon": POST + b"Content-Length : %d\r\n\r\n" % len(BODY) + BODY,
    "an obs-fold": POST + b"X-A: b\r\n c\r\nContent-Length: %d\r\n\r\n" % len(BODY) + BODY,
}


@pytest.mark.parametrize("attempt", AMBIGUOUS.values(), ids=AMBIGUOUS.keys())
async def test_ambiguous_requests_are_400_the_connection_closes_and_nothing_of_them_reaches_an_engine(
    gateway, engine, attempt
):
    """Nor does the sound request that follows in the same packet."""
    one = await engine()
    running = await gateway(one.view())
    async with await running.connect() as client:
        client.send(attempt + SOUND)
        answer = await client.answer()
        assert answer.status == 400
        assert json.loads(answer.body)["error"]["type"] == "invalid_request_error"
        assert await client.ended()
    assert not one.asked


async def test_pipelined_expecting_old_and_closing_requests_and_head_are_each_answered_by_the_standard(gateway, engine):
    one = await engine()
    running = await gateway(one.view())
    async with await running.connect() as client:
        client.send(SOUND + SOUND)
        assert [(await client.answer()).status for _ in range(2)] == [200, 200]
        client.send(POST + b"Expect: 100-continue\r\nContent-Length: %d\r\n\r\n" % len(BODY))
        assert (await client.answer()).status == 100
        client.send(BODY)
        assert (await client.answer()).status == 200
        assert (await client.ask("HEAD", "/v1/models")).body == b""
        client.send(
            SOUND.replace(b"HTTP/1.1", b"HTTP/1.0").replace(b"Content-Type", b"Connection: keep-alive\r\nContent-Type")
        )
        assert (await client.answer()).headers["connection"] == "keep-alive"
        client.send(SOUND.replace(b"Content-Type", b"Connection: close\r\nContent-Type"))
        assert (await client.answer()).headers["connection"] == "close"
        assert await client.ended()
    assert [asked.body for asked in one.asked] == [BODY] * 5


async def test_tokens_that_come_20_ms_apart_leave_20_ms_apart_each_in_a_write_of_its_own(gateway, engine):
    events = [event(f"词{number}") for number in range(8)]

    async def script(wire, asked):
        await wire.send(STREAM_HEAD)
        for each in events:
            await wire.send(chunk(each))
            await asyncio.sleep(0.02)
        await wire.send(chunk(event("", finish_reason="stop")), chunk(DONE), LAST_CHUNK)

    running = await gateway((await engine(script)).view())
    async with await running.connect() as client:
        client.request("POST", CHAT, BODY[:-1] + b',"stream":true}', ("Content-Type: application/json",))
        await client.head()
        came = []
        for each in events:
            assert await client.chunk() == each
            came.append(time.monotonic())
        gaps = sorted(later - earlier for earlier, later in itertools.pairwise(came))
        assert gaps[len(gaps) // 2] > 0.015, gaps
        while await client.chunk():
            pass


async def drip(client, data: bytes, gap_s: float) -> None:
    """A byte at a time, until the server has had enough."""
    for at in range(len(data)):
        client.send(data[at : at + 1])
        await asyncio.sleep(gap_s)
        if client.reader.at_eof() or client.reader._buffer:
            return


@pytest.mark.parametrize(
    ("setting", "data"),
    [("head_timeout_s", SOUND), ("body_timeout_s", POST + b"Content-Length: 9000\r\n\r\n" + b"x" * 9000)],
)
async def test_a_head_or_body_that_drips_is_cut_off_by_the_limit_of_its_setting_and_others_are_served(
    gateway, engine, setting, data
):
    one = await engine()
    running = await gateway(one.view(), options=GatewayOptions(**{setting: 0.3}))
    head = data.index(b"\r\n\r\n") + 4 if setting == "body_timeout_s" else 1
    async with await running.connect() as slow, await running.connect() as client:
        slow.send(data[:head])
        dripping = asyncio.ensure_future(drip(slow, data[head:], 0.05))
        for _ in range(5):
            client.send(SOUND)
            assert (await client.answer()).status == 200
        answer = await asyncio.wait_for(slow.answer(), 5)
        assert answer.status == 408
        assert json.loads(answer.body)["error"]["message"]
        await dripping
    assert len(one.asked) == 5


async def test_a_client_that_stops_reading_is_cut_off_by_the_limit_of_its_setting(gateway, engine):
    """And its engine is let go."""
    big = event("大" * 20_000)
    one = await engine(streams(*[big] * 400))
    running = await gateway(one.view(), options=GatewayOptions(write_timeout_s=0.3))
    async with await running.connect(receive_bytes=4096) as client:
        client.request("POST", CHAT, BODY[:-1] + b',"stream":true}', ("Content-Type: application/json",))
        await client.head()
        await running.ended(Outcome.CANCELLED)
    assert not running.replica().in_flight


def test_every_limit_on_clients_is_a_setting_of_the_gateway():
    assert set(Limits.__struct_fields__) <= set(GatewaySettings.model_fields)
