"""A body's framing, cut anywhere, against another parser."""

import itertools

import h11
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.errors import UpstreamClosedError
from tidegate.http.client import SeenHeads
from tidegate.http.framing import ChunkedBody, LengthBody, UntilCloseBody

PAYLOADS = st.lists(st.binary(min_size=1, max_size=40), max_size=6)
EXTENSIONS = st.sampled_from([b"", b";a", b";a=b", b';a="b c"', b";" + b"x" * 100])
TRAILERS = st.sampled_from([b"", b"X: y\r\n", b"X: y\r\nZ: 1\r\n"])
SIZES = st.sampled_from([b"%x", b"%X", b"0%x", b"00%X"])
CUTS = st.lists(st.integers(0, 400), max_size=8)


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    at = [0, *sorted(cut for cut in cuts if cut < len(data)), len(data)]
    return [data[start:end] for start, end in itertools.pairwise(at) if end > start]


def decoded(body, data: bytes, cuts: list[int]) -> tuple[bytes, bytes]:
    """Payload and surplus of `data` fed in pieces."""
    payload, surplus = b"", b""
    for piece in pieces(data, cuts):
        if body.done:
            surplus += piece
            continue
        some, rest = body.feed(piece)
        payload += some
        surplus += rest
        assert not rest or body.done
    return payload, surplus


def by_h11(framing: bytes, data: bytes) -> tuple[bytes, bool, bytes]:
    """Payload by h11, whether the body was whole, and what followed it."""
    client = h11.Connection(h11.CLIENT)
    client.send(h11.Request(method="GET", target="/", headers=[("Host", "x")]))
    client.send(h11.EndOfMessage())
    client.receive_data(b"HTTP/1.1 200 OK\r\n" + framing + b"\r\n" + data)
    payload = b""
    while True:
        event = client.next_event()
        if isinstance(event, h11.Data):
            payload += event.data
        elif isinstance(event, h11.EndOfMessage):
            return payload, True, client.trailing_data[0]
        elif event is h11.NEED_DATA or event is h11.PAUSED:
            return payload, False, b""


@given(PAYLOADS, SIZES, st.tuples(EXTENSIONS, TRAILERS), CUTS, st.sampled_from([b"", b"HTTP/1.1 200"]))
def test_chunks_cut_anywhere_are_the_payload_that_h11_reads(payloads, size, endings, cuts, after):
    extension, trailers = endings
    chunks = b"".join(size % len(one) + extension + b"\r\n" + one + b"\r\n" for one in payloads)
    data = chunks + b"0" + extension + b"\r\n" + trailers + b"\r\n"
    body = ChunkedBody()
    assert decoded(body, data + after, cuts) == (b"".join(payloads), after)
    assert body.done
    assert body.end()
    assert by_h11(b"Transfer-Encoding: chunked\r\n", data + after) == (b"".join(payloads), True, after)


@given(PAYLOADS, CUTS, st.integers(0, 400))
def test_chunks_that_end_early_are_never_whole(payloads, cuts, at):
    data = b"".join(b"%x\r\n%b\r\n" % (len(one), one) for one in payloads) + b"0\r\n\r\n"
    short = data[: min(at, len(data) - 1)]
    body = ChunkedBody()
    payload, surplus = decoded(body, short, cuts)
    assert b"".join(payloads).startswith(payload)
    assert (body.done, body.end(), surplus) == (False, False, b"")


@given(st.binary(max_size=60), CUTS, st.binary(max_size=5))
def test_a_body_of_known_length_ends_there(payload, cuts, after):
    body = LengthBody(len(payload))
    assert decoded(body, payload + after, cuts) == (payload, after)
    assert body.done


@given(st.binary(max_size=60), CUTS)
def test_a_body_until_the_end_is_all_there_is(payload, cuts):
    body = UntilCloseBody()
    assert decoded(body, payload, cuts) == (payload, b"")
    assert not body.done
    assert body.end()


@given(st.one_of(st.binary(max_size=80), st.text("0123456789abcdefx;\r\n ", max_size=60).map(str.encode)), CUTS)
def test_bad_framing_is_one_error_and_never_another(data, cuts):
    body = ChunkedBody()
    try:
        payload, _ = decoded(body, data, cuts)
    except UpstreamClosedError:
        return
    try:
        expected, whole, _ = by_h11(b"Transfer-Encoding: chunked\r\n", data)
    except h11.RemoteProtocolError:
        return  # we drop extensions and trailers unread
    assert payload == expected
    assert body.done == whole


@pytest.mark.parametrize(
    "data",
    [b"\r\n", b"x\r\n", b"-1\r\n", b"0x1\r\n", b"1\n", b"1\r\nab\r\n", b"1\r\na0\r\n", b"1" * 16 + b"\r\n", b"1;" + b"x" * 300,
     b" 1\r\n", b"1\r\na\n", b"1_0\r\n", b"0\r\nX: " + b"x" * 20_000, b"0\r\n" + b"X: y\r\n" * 5000, b"\xd9\xa1\r\n"],
)  # fmt: skip
def test_bad_chunks_are_refused_whole_and_in_single_bytes(data):
    with pytest.raises(UpstreamClosedError):
        ChunkedBody().feed(data)
    body = ChunkedBody()

    def drip():
        for at in range(len(data)):
            body.feed(data[at : at + 1])

    with pytest.raises(UpstreamClosedError):
        drip()


@pytest.mark.parametrize(
    "head",
    [b"", b"HTTP/2 200 OK", b"HTTP/1.1 20", b"HTTP/1.1 2000 OK", b"HTTP/1.1  200 OK", b"HTTP/1.1 000 OK", b"ICY 200 OK",
     b"HTTP/1.1 200 OK\r\nno colon", b"HTTP/1.1 200 OK\r\nA : b", b"HTTP/1.1 200 OK\r\n: b", b"HTTP/1.1 200 OK\r\nA: b\nC: d",
     b"HTTP/1.1 200 OK\r\n folded", b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2",
     b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\nTransfer-Encoding: chunked"],
)  # fmt: skip
def test_a_head_that_is_not_http_is_the_engines_fault(head):
    with pytest.raises(UpstreamClosedError):
        SeenHeads().head(head)


@given(st.binary(max_size=200))
def test_any_head_is_read_or_the_engines_fault(data):
    for head in (data, b"HTTP/1.1 200 OK\r\n" + data):
        try:
            found = SeenHeads().head(head)
        except UpstreamClosedError:
            continue
        assert 100 <= found.status <= 999


@pytest.mark.parametrize(
    ("head", "keep_alive"),
    [(b"HTTP/1.1 200 OK", True), (b"HTTP/1.1 200 OK\r\nConnection: close", False), (b"HTTP/1.0 200 OK", False),
     (b"HTTP/1.0 200 OK\r\nConnection: Keep-Alive", True), (b"HTTP/1.1 200\r\nconnection: Close", False)],
)  # fmt: skip
def test_an_engine_says_whether_its_connection_stays(head, keep_alive):
    seen = SeenHeads()
    assert [seen.head(head).keep_alive for _ in range(2)] == [keep_alive, keep_alive]


def test_chunks_of_any_sizes_are_the_same_wherever_a_packet_ends():
    """Also between the two bytes that end a size line."""
    for first, second in itertools.product(range(1, 16), range(1, 20)):
        data = b"%x\r\n%b\r\n%x\r\n%b\r\n0\r\n\r\n" % (first, b"a" * first, second, b"b" * second)
        for cut in range(1, len(data)):
            assert decoded(ChunkedBody(), data, [cut]) == (b"a" * first + b"b" * second, b"")
