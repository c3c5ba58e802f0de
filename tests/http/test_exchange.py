"""Requests and answers on one connection, by RFC 9112."""

import asyncio

import pytest

HELLO = b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n"


async def test_a_connection_serves_one_request_after_the_other(serve):
    served = await serve()
    async with await served.connect() as client:
        for number in range(3):
            answer = await client.ask("POST", f"/{number}", b"x" * number)
            assert (answer.status, answer.headers["x-path"], answer.body) == (200, f"/{number}", b"x" * number)
            assert "connection" not in answer.headers
            assert "date" in answer.headers


@pytest.mark.parametrize("count", [2, 1000])
async def test_pipelined_requests_are_answered_in_order(serve, count):
    served = await serve()
    async with await served.connect() as client:
        client.send(b"".join(b"POST /%d HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\ny" % n for n in range(count)))
        for number in range(count):
            answer = await client.answer()
            assert (answer.headers["x-path"], answer.body) == (f"/{number}", b"y")


async def test_pipelined_requests_answered_later_keep_their_order(serve):
    served = await serve(lambda _: None)
    async with await served.connect() as client:
        client.send(HELLO * 3)
        for number in range(3):
            while len(served.exchanges) <= number:
                await asyncio.sleep(0)
            assert len(served.exchanges) == number + 1, "the next request waits for this answer"
            served.exchanges[number].respond(200, (), b"%d" % number)
            assert (await client.answer()).body == b"%d" % number


@pytest.mark.parametrize("step", [1, 3, 7])
async def test_a_request_cut_anywhere_is_the_same_request(serve, step):
    served = await serve()
    request = b"POST /cut?q=1 HTTP/1.1\r\nHost: x\r\nX-Some: a b\r\nContent-Length: 6\r\n\r\n" + "盘古".encode()
    async with await served.connect() as client:
        for start in range(0, len(request), step):
            client.send(request[start : start + step])
            await asyncio.sleep(0)
        answer = await client.answer()
    assert answer.body == "盘古".encode()
    request = served.requests[0]
    assert (request.method, request.target, request.path, request.query) == (b"POST", b"/cut?q=1", "/cut", b"q=1")
    assert request.headers == {b"host": b"x", b"x-some": b"a b", b"content-length": b"6"}


async def test_a_chunked_body_cut_at_every_byte_is_the_same_body(serve):
    served = await serve()
    body = b"5;ext=1\r\nhello\r\n9\r\n \xe7\x9b\x98\xf0\x9f\x98\x80!\r\n0\r\nTrailer: of no effect\r\n\r\n"
    request = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" + body
    async with await served.connect() as client:
        for cut in range(1, len(request)):
            client.send(request[:cut])
            await asyncio.sleep(0)
            client.send(request[cut:])
            assert (await client.answer()).body == b"hello \xe7\x9b\x98\xf0\x9f\x98\x80!"
    assert all(b"trailer" not in request.headers for request in served.requests)


async def test_http_1_0_is_answered_and_closed(serve):
    served = await serve()
    async with await served.connect() as client:
        client.send(b"GET /old HTTP/1.0\r\n\r\n")
        answer = await client.answer()
        assert (answer.status, answer.headers["connection"]) == (200, "close")
        assert await client.ended()


async def test_http_1_0_with_keep_alive_is_kept(serve):
    served = await serve()
    async with await served.connect() as client:
        for _ in range(2):
            client.send(b"GET /old HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
            assert (await client.answer()).headers["connection"] == "keep-alive"


async def test_a_stream_to_http_1_0_ends_with_the_connection(serve):
    def stream(exchange):
        exchange.start(200)
        exchange.write(b"one ")
        exchange.write(b"two")
        exchange.finish()

    served = await serve(stream)
    async with await served.connect() as client:
        client.send(b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
        answer = await client.answer()
        assert answer.body == b"one two"
        assert answer.headers["connection"] == "close"
        assert "transfer-encoding" not in answer.headers


async def test_connection_close_is_answered_and_closed(serve):
    served = await serve()
    async with await served.connect() as client:
        answer = await client.ask("GET", "/", headers=("Connection: close",))
        assert answer.headers["connection"] == "close"
        assert await client.ended()


async def test_a_stream_is_chunked_one_write_a_chunk(serve):
    def stream(exchange):
        exchange.start(200, [(b"content-type", b"text/plain")])
        for piece in (b"a", b"", "盘".encode(), b"z" * 5000):
            exchange.write(piece)
        exchange.finish()
        exchange.write(b"after the end")
        exchange.finish()

    served = await serve(stream)
    async with await served.connect() as client:
        answer = await client.ask("GET", "/")
        assert answer.pieces == [b"a", "盘".encode(), b"z" * 5000]
        assert (await client.ask("GET", "/")).whole


async def test_head_has_the_head_of_the_answer_and_no_body(serve):
    def answer_late(exchange):
        if exchange.request.path == "/stream":
            exchange.start(200)
            exchange.write(b"unseen")
            exchange.finish()
        else:
            exchange.respond(200, (), b"12345")

    served = await serve(answer_late)
    async with await served.connect() as client:
        assert (await client.ask("HEAD", "/")).headers["content-length"] == "5"
        assert (await client.ask("HEAD", "/stream")).status == 200
        assert (await client.ask("GET", "/")).body == b"12345", "nothing of a body was left on the connection"


@pytest.mark.parametrize("status", [204, 304])
async def test_an_answer_without_a_body_has_no_length(serve, status):
    served = await serve(lambda exchange: exchange.respond(status, (), b"ignored"))
    async with await served.connect() as client:
        assert "content-length" not in (await client.ask("GET", "/")).headers
        assert (await client.ask("GET", "/")).status == status


async def test_a_status_without_a_name_is_passed_on(serve):
    served = await serve(lambda exchange: exchange.respond(529, (), b"busy"))
    async with await served.connect() as client:
        assert (await client.ask("GET", "/")).status == 529


async def test_options_reaches_the_handler_with_a_path_and_with_an_asterisk(serve):
    served = await serve()
    async with await served.connect() as client:
        await client.ask("OPTIONS", "/v1/models")
        await client.ask("OPTIONS", "*")
    assert [request.path for request in served.requests] == ["/v1/models", "*"]


async def test_a_client_that_expects_100_continue_is_told_to_go_on(serve):
    served = await serve()
    async with await served.connect() as client:
        client.send(b"POST / HTTP/1.1\r\nHost: x\r\nExpect: 100-Continue\r\nContent-Length: 4\r\n\r\n")
        assert (await client.answer()).status == 100
        client.send(b"body")
        assert (await client.answer()).body == b"body"


async def test_a_pipelined_expectation_is_met_only_when_its_turn_comes(serve):
    served = await serve(lambda _: None)
    async with await served.connect() as client:
        client.send(HELLO + b"POST / HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n")
        while not served.exchanges:
            await asyncio.sleep(0)
        served.exchanges[0].respond(200, (), b"first")
        assert (await client.answer()).body == b"first"
        assert len(served.exchanges) == 1
        client.send(b"body")
        while len(served.exchanges) < 2:
            await asyncio.sleep(0)
        served.exchanges[1].respond(200, (), served.requests[1].body)
        answer = await client.answer()
        assert (answer if answer.status != 100 else await client.answer()).body == b"body"


@pytest.mark.parametrize(
    "upgrade",
    [
        "Upgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\nConnection: Upgrade, HTTP2-Settings",
        "Upgrade: websocket\r\nConnection: Upgrade",
    ],
)
async def test_an_upgrade_is_ignored_and_the_request_answered_with_its_body(serve, upgrade):
    served = await serve()
    async with await served.connect() as client:
        for body in (b"", b"some", b"x" * 300_000):
            answer = await client.ask("POST", "/up", body, (upgrade,))
            assert (answer.status, answer.body) == (200, body)
        client.request("POST", "/up", b"", (upgrade, "Transfer-Encoding: chunked", "Expect: 100-continue"))
        assert (await client.answer()).status == 100
        client.send(b"4\r\nsome\r\n0\r\n\r\n")
        assert (await client.answer()).body == b"some"
        client.request("GET", "/", headers=(upgrade.replace("Connection: ", "Connection: close, "),))
        assert (await client.answer()).headers["connection"] == "close"
        assert await client.ended()


async def test_pipelined_upgrades_are_refused_after_the_first_answer(serve):
    served = await serve()
    async with await served.connect() as client:
        client.send(b"GET /up HTTP/1.1\r\nHost: x\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n\r\n" * 1000)
        assert (await client.answer()).headers["connection"] == "close"
        assert await client.ended()
    assert len(served.exchanges) == 1


async def test_headers_that_come_twice_are_joined(serve):
    served = await serve()
    async with await served.connect() as client:
        await client.ask("GET", "/", headers=("X-A: 1", "X-B:", "x-a: 2"))
    assert served.requests[0].headers == {b"host": b"localhost", b"x-a": b"1, 2", b"x-b": b""}


async def test_headers_of_every_answer_are_on_both_kinds_of_answer(serve):
    def handler(exchange):
        exchange.extra_headers = [(b"x-extra", b"yes")]
        if exchange.request.path == "/stream":
            exchange.start(200)
            exchange.finish()
        else:
            exchange.respond(200)

    served = await serve(handler)
    async with await served.connect() as client:
        assert (await client.ask("GET", "/stream")).headers["x-extra"] == "yes"
        assert (await client.ask("GET", "/")).headers["x-extra"] == "yes"


async def test_the_peer_is_the_clients_address(serve):
    served = await serve(lambda exchange: exchange.respond(200, (), exchange.peer.encode()))
    async with await served.connect() as client:
        assert (await client.ask("GET", "/")).body == b"127.0.0.1"
