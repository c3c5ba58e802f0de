"""Answers that wait for the end of a turn, beside streams written directly: in every order clients can bring about."""

import asyncio
import random

import pytest

from gateway.wire import until

EVENT = b"5\r\nabc\n\n\r\n"
BIG = 256 * 1024


def answer_in_steps(exchange, step):
    """`/json` at once, `/stream` as events do: begun through the outbox, gone on with directly, one event a step."""
    if exchange.request.path == "/json":
        exchange.respond(200, (), exchange.request.query)
        return
    exchange.start(200)
    exchange.write(b"first\n\n")
    direct = exchange.direct() if exchange.chunked else None

    def go_on(left):
        if not left:
            exchange.finish()
        elif not exchange.finished:
            if direct is not None and exchange.request.method != b"HEAD":
                direct(EVENT)
            else:
                exchange.write(b"abc\n\n")
            step(go_on, left - 1)

    step(go_on, int(exchange.request.query or 0))


def at_once(function, *arguments):
    function(*arguments)


def next_turn(function, *arguments):
    asyncio.get_running_loop().call_soon(function, *arguments)


def body_of(path):
    name, _, count = path.partition("?")
    return count if name == "/json" else "first\n\n" + "abc\n\n" * int(count or 0)


@pytest.mark.parametrize("step", [at_once, next_turn])
async def test_pipelined_answers_keep_their_order_with_streams_before_and_after(serve, step):
    served = await serve(lambda exchange: answer_in_steps(exchange, step))
    dice = random.Random(5)
    for _ in range(40):
        paths = [f"/{dice.choice(('json', 'stream'))}?{dice.randrange(4)}" for _ in range(dice.randrange(1, 12))]
        raw = b"".join(b"GET %b HTTP/1.1\r\nHost: x\r\n\r\n" % path.encode() for path in paths)
        cut = dice.randrange(len(raw))
        async with await served.connect() as client:
            client.send(raw[:cut])
            await asyncio.sleep(0)
            client.send(raw[cut:])
            assert [(await client.answer()).body.decode() for _ in paths] == [body_of(path) for path in paths]


async def test_several_clients_in_one_turn_each_get_their_own(serve):
    served = await serve(lambda exchange: answer_in_steps(exchange, next_turn))
    paths = [f"/{('json', 'stream')[number % 3 == 0]}?{number}" for number in range(60)]

    async def ask(path):
        async with await served.connect() as client:
            return [(await client.ask("GET", path)).body.decode() for _ in range(3)]

    found = await asyncio.gather(*map(ask, paths))
    assert found == [[body_of(path)] * 3 for path in paths]


async def test_a_stream_to_http_1_0_and_the_head_of_one_carry_no_chunks(serve):
    served = await serve(lambda exchange: answer_in_steps(exchange, next_turn))
    async with await served.connect() as client:
        assert (await client.ask("HEAD", "/stream?3")).headers["transfer-encoding"] == "chunked"
        client.send(b"GET /stream?3 HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
        answer = await client.answer()
        assert answer.body.decode() == body_of("/stream?3")
        assert "transfer-encoding" not in answer.headers


async def test_a_direct_write_to_who_asked_for_the_head_alone_is_none(serve):
    """Whoever streams need not ask what was asked for."""

    def stream(exchange):
        exchange.start(200)
        exchange.direct()(EVENT)
        exchange.finish()

    served = await serve(stream)
    async with await served.connect() as client:
        assert (await client.ask("HEAD", "/")).status == 200
        assert (await client.ask("GET", "/")).body == b"abc\n\n"


async def test_who_half_closes_while_an_answer_is_awaited_keeps_those_before_it(serve):
    def handler(exchange):
        if exchange.request.path == "/json":
            exchange.respond(200, (), b"yes")

    served = await serve(handler)
    async with await served.connect() as client:
        client.send(b"GET /json HTTP/1.1\r\nHost: x\r\n\r\n" * 2 + b"GET /waits HTTP/1.1\r\nHost: x\r\n\r\n")
        client.half_close()
        assert [(await client.answer()).body for _ in range(2)] == [b"yes", b"yes"]
        assert await client.ended()
    await until(lambda: not served.server.connections)


@pytest.mark.parametrize("directly", [True, False])
async def test_an_answer_cut_off_in_the_turn_it_was_begun_is_never_whole(serve, directly):
    def handler(exchange):
        exchange.start(200)
        exchange.write(b"a" * 10)
        if directly:
            exchange.direct()(EVENT)
        exchange.write(b"b" * 10)
        exchange.abort()
        exchange.finish()
        exchange.write(b"never")

    served = await serve(handler)
    for _ in range(20):
        client = await served.connect()
        client.request("GET", "/")
        seen = b""
        try:
            while piece := await client.reader.read(4096):
                seen += piece
        except ConnectionError:
            pass
        assert b"0\r\n\r\n" not in seen
        assert b"never" not in seen
        await client.close()
    await until(lambda: not served.server.connections)


async def test_a_slow_reader_and_others_of_its_turn_get_every_byte(serve):
    """What waits for the end of the turn may be what makes the slow one slow; the others do not wait with it."""
    paused = []

    def handler(exchange):
        if exchange.request.path == "/json":
            exchange.respond(200, (), b"yes")
            return
        exchange.on_pause = lambda: paused.append(True)
        exchange.on_resume = lambda: paused.append(False)
        exchange.start(200)
        left = 64

        def more():
            nonlocal left
            while left and not exchange.paused:
                left -= 1
                exchange.write(b"%02d" % left + b"x" * BIG)
                exchange.write(b"small")
            if left:
                asyncio.get_running_loop().call_soon(more)
            elif not exchange.finished:
                exchange.finish()

        more()

    served = await serve(handler)
    async with await served.connect(receive_bytes=4096) as slow, await served.connect() as quick:
        slow.request("GET", "/stream")
        await until(lambda: paused)
        for _ in range(10):
            assert (await quick.ask("GET", "/json")).body == b"yes"
        answer = await slow.answer()
        assert answer.pieces == [
            piece for left in range(63, -1, -1) for piece in (b"%02d" % left + b"x" * BIG, b"small")
        ]
    assert paused[:2] == [True, False]
