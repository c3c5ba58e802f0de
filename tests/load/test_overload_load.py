"""The load that overloads are measured with: it comes at its times, tells what a person waited, and counts nothing well that was not."""

import asyncio
import contextlib
import time
import xml.etree.ElementTree as ET

import pytest

from load.fronts import (
    INTERACTIVE,
    MIX,
    by_label,
    capacity,
    fake_engines,
    requests,
    sum_of,
    tidegate,
    tokens_made,
    words,
)
from load.overload import Client, Load, Outcome, Phase, plan, row, says_something
from load.plots import Panel, Series, draw
from load.steps import per_second, recovery_s
from tidegate.engines.fake_text import chat_prompt, count

HEAD = b"HTTP/1.1 %b\r\ncontent-type: %b\r\n%b\r\n"
STREAM = HEAD % (b"200 OK", b"text/event-stream", b"transfer-encoding: chunked\r\n")


def test_two_fronts_get_the_same_requests_at_the_same_times():
    phases = [Phase(20.0, 5.0, MIX), Phase(60.0, 5.0, MIX)]
    arrivals = plan(phases, seed=3)
    assert arrivals == plan(phases, seed=3) != plan(phases, seed=4)
    assert [at for at, _ in arrivals] == sorted(at for at, _ in arrivals)
    assert sum(at < 5 for at, _ in arrivals) == pytest.approx(100, abs=30)
    assert sum(at >= 5 for at, _ in arrivals) == pytest.approx(300, abs=50)
    assert sum(kind == "batch" for _, kind in arrivals) == pytest.approx(0.3 * len(arrivals), abs=30)


def test_the_engines_capacity_is_every_slot_busy_in_every_step():
    """16 slots, steps of 25 ms and 0.1 a sequence: 16 x 1000 / 26.6 tokens a second, less for the prompts."""
    assert capacity(1, {"batch": 1.0}) * 128 == pytest.approx(16e3 / 26.6, rel=0.03)
    assert capacity(2) == 2 * capacity(1)


def test_prompts_have_the_tokens_that_are_said():
    body = requests()["interactive"][0].partition(b"\r\n\r\n")[2].decode()
    text = body.partition('"content":"')[2].partition('"')[0]
    assert count(chat_prompt([{"role": "user", "content": text}], open_end=False)) == 85
    assert count(words(100, 3)) == 100


async def ended(*packets: bytes, kind: str = "interactive") -> Outcome:
    """What a client makes of an engine that sends this, and ends."""

    closed = asyncio.Event()

    async def answer(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        for packet in packets:
            writer.write(packet)
            await asyncio.sleep(0.01)
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
        closed.set()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        load = Load(server.sockets[0].getsockname()[1], {kind: [INTERACTIVE.request("Hi")]})
        await load.arrive([(0.0, kind)], 0.0)
        found = (await load.finish())[0]
        await closed.wait()
        return found


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


ROLE, TOKEN, DONE = (
    chunk(b"data: " + data + b"\n\n")
    for data in (b'{"delta":{"role":"assistant","content":""}}', b'{"delta":{"content":"a"}}', b"[DONE]")
)


async def test_a_stream_is_whole_with_its_last_event_and_its_first_token_is_not_the_role():
    found = await ended(STREAM, ROLE, TOKEN, DONE + b"0\r\n\r\n")
    assert found.whole_s is not None
    assert 0.015 < found.first_s < found.whole_s
    assert not found.fault


@pytest.mark.parametrize(
    "packets",
    [
        (),
        (b"nothing of the kind",),
        (STREAM, TOKEN),
        (STREAM, TOKEN, b"0\r\n\r\n"),
        (STREAM, TOKEN, chunk(b'data: {"error":{"message":"x"}}\n\n'), DONE + b"0\r\n\r\n"),
        (HEAD % (b"500 Internal Server Error", b"application/json", b"content-length: 2\r\n") + b"{}",),
    ],
)
async def test_whatever_is_neither_whole_nor_an_honest_refusal_is_a_fault(packets):
    assert (await ended(*packets)).fault


async def test_a_refusal_is_no_fault_and_says_when_to_come_again():
    found = await ended(
        HEAD % (b"429 Too Many", b"application/json", b"retry-after-ms: 1500\r\ncontent-length: 2\r\n") + b"{}"
    )
    assert (found.refused, found.fault, found.retry_after_s) == (True, False, 1.5)


class Nowhere(asyncio.Transport):
    """A connection to nobody."""

    def write(self, data):
        pass

    def abort(self):
        pass


async def test_who_is_sent_late_has_waited_since_the_time_at_which_it_should_have_been_sent():
    outcome = Outcome("interactive", 0.0, 200)
    client = Client(outcome, b"", time.monotonic() - 3.0)
    client.connection_made(Nowhere())
    client.data_received(STREAM + TOKEN)
    assert outcome.first_s >= 3.0


def test_an_event_says_something_when_it_has_text():
    assert says_something(b'data: {"text":"a"}')
    assert not says_something(b'data: {"delta":{"role":"assistant","content":""}}')
    assert not says_something(b'data: {"delta":{"content":"')


def outcome(at, first, *, status=200, kind="interactive", whole=None):
    return Outcome(kind, at, status, first, whole or (first + 1 if first is not None else None))


def test_shares_are_of_all_interactive_requests_and_the_refused_were_not_in_time():
    found = row(
        [
            outcome(0, 0.1),
            outcome(0, 0.6),
            outcome(0, None, status=429),
            outcome(0, None),
            outcome(0, 9.0, kind="batch"),
        ],
        2.0,
        target_s=0.5,
        bounds_s=(1.5,),
    )
    assert found["in_time"] == 0.25
    assert (found["refused"], found["refused_interactive"], found["faults"]) == (1, 1, 1)
    assert found["over_1.5_s"] == 0.5
    assert found["batch_per_s"] == 0.5


def test_recovery_ends_with_the_last_second_that_was_late():
    late = [outcome(at + 0.5, 2.0 if at < 13 else 0.1) for at in range(20)]
    assert recovery_s(per_second(late, 20.0), 10.0, 0.5) == 3.0
    assert recovery_s(per_second(late, 20.0), 14.0, 0.5) == 0.0
    assert recovery_s(per_second([*late, outcome(19.2, 5.0)], 20.0), 10.0, 0.5) is None


def test_metrics_are_read_by_name_and_label():
    text = 'x_total{a="1"} 2.0\nx_total{a="2"} 3.0\nx 7\ny{replica="r-0",class="c"} 4.0\n'
    assert sum_of(text, "x_total") == 5.0
    assert sum_of(text, "x") == 7.0
    assert by_label(text, "y", "replica") == {"r-0": 4.0}


def test_a_plot_is_well_formed_whatever_is_in_it(tmp_path):
    lines = [Series("a < b", [(0, 1.0), (1, None), (2, 0.5), (3, 4.0)]), Series("steps", [(0, 1), (3, 2)], steps=True)]
    groups = [("1 x", [("nginx", 30.0), ("tidegate", 99.0)]), ("2 x", [("nginx", 0.0)])]
    draw(
        tmp_path / "plot.svg",
        "A & B",
        [
            Panel("lines", " s", lines, log_from=0.1, marks=((0.5, "500 ms"),), shaded=((1, 2, "much"),)),
            Panel("bars", " %", groups=groups),
            Panel("nothing", "", [Series("none", [])]),
        ],
    )
    root = ET.parse(tmp_path / "plot.svg").getroot()  # noqa: S314 - it was written a line above
    words = [text.text for text in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"A & B", "a < b", "500 ms", "nginx", "1 x"} <= set(words)


async def test_a_small_load_before_the_gateway_comes_out_whole(tmp_path):
    with fake_engines(tmp_path) as engines, tidegate(tmp_path, engines) as front:
        arrivals = plan([Phase(10.0, 2.0, {"interactive": 1.0})], seed=1)
        load = Load(front.port, requests())
        await load.arrive(arrivals, 2.0)
        outcomes = await load.finish()
        found = row(outcomes, 2.0, target_s=5.0, bounds_s=(30.0,))
        assert (found["requests"], found["in_time"], found["faults"]) == (len(arrivals), 1.0, 0)
        assert tokens_made(engines) >= 32 * len(arrivals)
