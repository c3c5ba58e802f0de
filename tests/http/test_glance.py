"""What is read at a glance means what llhttp says it means."""

import httptools
from hypothesis import given
from hypothesis import strategies as st

from tidegate.http.request import Glance


class Llhttp:
    """llhttp's reading of `data`: the requests in it, and whether it is an error or unfinished."""

    def __init__(self, data: bytes) -> None:
        self.target, self.headers, self.body, self.whole = b"", [], b"", 0
        self.fault = False
        self.parser = httptools.HttpRequestParser(self)
        try:
            self.parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self.fault = True

    def on_url(self, url):
        self.target += url

    def on_header(self, name, value):
        self.headers.append((name.lower(), value.rstrip(b" \t")))

    def on_body(self, body):
        self.body += body

    def on_message_complete(self):
        self.whole += 1


NAMES = st.sampled_from(
    [b"Host", b"Content-Length", b"content-length", b"Transfer-Encoding", b"Connection", b"Expect", b"Upgrade", b"X-A",
     b"X-B", b"Accept", b"X A", b"X-\xe9", b"", b"X:"]
)  # fmt: skip
VALUES = st.one_of(
    st.sampled_from([b"0", b"3", b"03", b"3 ", b"+3", b"3, 3", b"chunked", b"close", b"keep-alive", b"", b"a\tb"]),
    st.binary(max_size=6),
    st.text("abc :,;\"'\t\x00\r\n\x7fé", max_size=8).map(str.encode),
)
LINES = st.lists(
    st.builds(lambda name, colon, value: name + colon + value, NAMES, st.sampled_from([b": ", b":", b" : "]), VALUES),
    max_size=5,
)
FIRST = st.one_of(
    st.sampled_from([b"GET / HTTP/1.1", b"POST /v1/x?y=1 HTTP/1.1", b"GET / HTTP/1.0", b"GET  / HTTP/1.1", b"GET /"]),
    st.builds(lambda path: b"GET /" + path + b" HTTP/1.1", st.binary(max_size=4)),
)
BODIES = st.sampled_from([b"", b"abc", b"abcd", b"0\r\n\r\n", b"\r\n"])
ENDS = st.sampled_from([b"\r\n", b"\r\n", b"\r\n", b"\n"])


@given(FIRST, LINES, BODIES, ENDS, st.booleans())
def test_the_glance_says_nothing_or_what_llhttp_says(first, lines, body, end, host):
    glance = Glance()
    lines = [b"Host: x", *lines] if host else lines
    data = end.join([first, *lines]) + b"\r\n\r\n" + body
    for _ in range(2):  # the second time with its lines known
        request = glance.read(data, max_headers=100, max_body_bytes=1000)
        if request is None:
            continue
        judge = Llhttp(data)
        assert not judge.fault
        assert judge.whole == 1
        assert judge.parser.should_keep_alive()
        assert (request.method, request.target, request.body) == (judge.parser.get_method(), judge.target, judge.body)
        assert request.headers == dict(judge.headers)
        assert len(request.headers) == len(judge.headers)


def test_ordinary_requests_are_read_at_a_glance():
    data = b"POST /v1/x?q HTTP/1.1\r\nHost: a:1\r\nContent-Type: application/json\r\ncontent-length: 2\r\n\r\n{}"
    request = Glance().read(data, max_headers=10, max_body_bytes=10)
    assert request is not None
    assert (request.path, request.query, request.body, request.headers[b"content-length"]) == (
        "/v1/x",
        b"q",
        b"{}",
        b"2",
    )


def test_the_lines_it_knows_are_bounded():
    glance = Glance()
    for number in range(5000):
        data = b"GET / HTTP/1.1\r\nHost: x\r\nX: %d\r\nY: %b\r\n\r\n" % (number, b"y" * 600)
        assert glance.read(data, max_headers=10, max_body_bytes=10)
    assert len(glance._known) <= 2048
    assert max(map(len, glance._known)) <= 512
