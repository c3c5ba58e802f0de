"""What two servers could read in two ways is refused, the connection closed, and no handler called."""

import asyncio

import pytest

POST = b"POST / HTTP/1.1\r\nHost: x\r\n"
ATTEMPTS = {
    "length and transfer-encoding": POST + b"Content-Length: 6\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nX",
    "transfer-encoding and length": POST + b"Transfer-Encoding: chunked\r\nContent-Length: 6\r\n\r\n0\r\n\r\nX",
    "two lengths": POST + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nab",
    "two equal lengths": POST + b"Content-Length: 1\r\nContent-Length: 1\r\n\r\na",
    "a list of lengths": POST + b"Content-Length: 1, 1\r\n\r\na",
    "a signed length": POST + b"Content-Length: +1\r\n\r\na",
    "a negative length": POST + b"Content-Length: -1\r\n\r\na",
    "a length in hex": POST + b"Content-Length: 0x1\r\n\r\na",
    "a length with an underscore": POST + b"Content-Length: 1_0\r\n\r\n0123456789",
    "a length beyond 64 bits": POST + b"Content-Length: 99999999999999999999\r\n\r\na",
    "an empty length": POST + b"Content-Length:\r\n\r\n",
    "bare line feeds": b"GET / HTTP/1.1\nHost: x\n\n",
    "a bare line feed after a header": b"GET / HTTP/1.1\r\nHost: x\nX-A: b\r\n\r\n",
    "a bare line feed at the end of the head": b"GET / HTTP/1.1\r\nHost: x\r\n\n",
    "a bare carriage return": b"GET / HTTP/1.1\r\nHost: x\r\nX: a\rb\r\n\r\n",
    "a space before the colon": POST + b"Content-Length : 1\r\n\r\na",
    "a tab before the colon": POST + b"Transfer-Encoding\t: chunked\r\n\r\n0\r\n\r\n",
    "a space before the name": b"GET / HTTP/1.1\r\n Host: x\r\n\r\n",
    "a folded header": b"GET / HTTP/1.1\r\nHost: x\r\nX: a\r\n b\r\n\r\n",
    "a folded header with a tab": b"GET / HTTP/1.1\r\nHost: x\r\nX: a\r\n\tb\r\n\r\n",
    "a header without a colon": b"GET / HTTP/1.1\r\nHost: x\r\nnothing\r\n\r\n",
    "a header without a name": b"GET / HTTP/1.1\r\nHost: x\r\n: nothing\r\n\r\n",
    "NUL in a value": b"GET / HTTP/1.1\r\nHost: x\r\nX: a\x00b\r\n\r\n",
    "NUL in a name": b"GET / HTTP/1.1\r\nHost: x\r\nX\x00: a\r\n\r\n",
    "NUL in the target": b"GET /\x00 HTTP/1.1\r\nHost: x\r\n\r\n",
    "HTTP/0.9": b"GET /\r\n\r\n",
    "HTTP/0.9 by name": b"GET / HTTP/0.9\r\n\r\n",
    "HTTP/1.2": b"GET / HTTP/1.2\r\nHost: x\r\n\r\n",
    "HTTP/2.0": b"GET / HTTP/2.0\r\nHost: x\r\n\r\n",
    "the preface of HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "an absolute target": b"GET http://other/v1/models HTTP/1.1\r\nHost: x\r\n\r\n",
    "a target without a slash": b"GET v1/models HTTP/1.1\r\nHost: x\r\n\r\n",
    "an asterisk for a GET": b"GET * HTTP/1.1\r\nHost: x\r\n\r\n",
    "CONNECT": b"CONNECT other:443 HTTP/1.1\r\nHost: x\r\n\r\n",
    "a space in the target": b"GET /a b HTTP/1.1\r\nHost: x\r\n\r\n",
    "bytes beyond ASCII in the target": "GET /盘 HTTP/1.1\r\nHost: x\r\n\r\n".encode(),
    "two hosts": b"GET / HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n",
    "no host": b"GET / HTTP/1.1\r\n\r\n",
    "two authorizations": b"GET / HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer a\r\nAuthorization: Bearer b\r\n\r\n",
    "two content types": POST + b"Content-Type: application/json\r\nContent-Type: text/plain\r\n\r\n",
    "two transfer-encodings": POST
    + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n",
    "an unknown transfer-encoding": POST + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "a transfer-encoding before chunked": POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "identity": POST + b"Transfer-Encoding: identity\r\n\r\n",
    "chunked twice": POST + b"Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n",
    "a vertical tab before chunked": POST + b"Transfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n",
    "chunked in quotes": POST + b'Transfer-Encoding: "chunked"\r\n\r\n0\r\n\r\n',
    "an empty transfer-encoding": POST + b"Transfer-Encoding:\r\n\r\n",
    "chunked in HTTP/1.0": b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "a chunk size that is no number": POST + b"Transfer-Encoding: chunked\r\n\r\nx\r\n\r\n",
    "a chunk size with 0x": POST + b"Transfer-Encoding: chunked\r\n\r\n0x1\r\na\r\n0\r\n\r\n",
    "a chunk size beyond 64 bits": POST + b"Transfer-Encoding: chunked\r\n\r\n10000000000000001\r\na\r\n0\r\n\r\n",
    "a bare line feed after a chunk size": POST + b"Transfer-Encoding: chunked\r\n\r\n1\na\r\n0\r\n\r\n",
    "a chunk longer than its size": POST + b"Transfer-Encoding: chunked\r\n\r\n1\r\nab\r\n0\r\n\r\n",
    "something that is not HTTP": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
}  # fmt: skip


@pytest.mark.parametrize("attempt", ATTEMPTS.values(), ids=ATTEMPTS.keys())
async def test_ambiguous_requests_are_refused_and_never_handled(serve, attempt):
    served = await serve()
    async with await served.connect() as client:
        client.send(attempt)
        answer = await client.answer()
        assert 400 <= answer.status <= 505
        assert answer.headers["connection"] == "close"
        assert await client.ended()
    assert not served.exchanges


@pytest.mark.parametrize("attempt", ATTEMPTS.values(), ids=ATTEMPTS.keys())
async def test_ambiguous_requests_cut_into_single_bytes_are_never_handled_either(serve, attempt):
    served = await serve()
    async with await served.connect() as client:
        for at in range(len(attempt)):
            client.send(attempt[at : at + 1])
            await asyncio.sleep(0)
        assert (await client.answer()).status >= 400
        assert await client.ended()
    assert not served.exchanges


async def test_what_follows_a_request_that_was_not_understood_is_never_a_request(serve):
    served = await serve()
    good = b"GET /good HTTP/1.1\r\nHost: x\r\n\r\n"
    async with await served.connect() as client:
        client.send(good + b"GET /bad HTTP/1.1\nHost: x\n\n" + good)
        answer = await client.answer()
        assert (answer.headers["x-path"], answer.headers["connection"]) == ("/good", "close")
        assert await client.ended()
    assert len(served.exchanges) == 1


async def test_bytes_after_connection_close_are_never_a_request(serve):
    served = await serve()
    async with await served.connect() as client:
        client.send(b"GET /last HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\nGET /more HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await client.answer()).headers["x-path"] == "/last"
        assert await client.ended()
    assert len(served.exchanges) == 1


@pytest.mark.parametrize("cut", range(1, 54))
async def test_what_looks_like_a_request_inside_another_is_none(serve, cut):
    """The second request's head or body begins in the packet of the first, and goes on in one of its own."""
    served = await serve()
    inner = b"GET /inner HTTP/1.1\r\nHost: x\r\n\r\n"
    outer = b"POST /outer HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(inner)
    assert len(outer) == 53
    async with await served.connect() as client:
        client.send(b"GET /first HTTP/1.1\r\nHost: x\r\n\r\n" + outer[:cut])
        assert (await client.answer()).headers["x-path"] == "/first"
        if cut < len(outer):
            client.send(outer[cut:])
            await asyncio.sleep(0.001)
        client.send(inner)
        answer = await client.answer()
        assert (answer.headers["x-path"], answer.body) == ("/outer", inner)
    assert len(served.exchanges) == 2


async def test_a_head_that_goes_on_with_what_looks_like_a_request_is_refused(serve):
    served = await serve()
    async with await served.connect() as client:
        client.send(b"GET /first HTTP/1.1\r\nHost: x\r\n\r\nGET /second HTTP/1.1\r\nHost: x\r\nX: ")
        assert (await client.answer()).headers["x-path"] == "/first"
        client.send(b"GET /inner HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await client.answer()).status == 400
    assert len(served.exchanges) == 1
