"""What fuzzing has found, each kept as a case."""

from collections import Counter

import pytest

from fuzz.requests import Driven, check
from tidegate.http.request import Glance

HOST = b" HTTP/1.1\r\nHost: a\r\n"
UPGRADE = b"Connection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: 2\r\n\r\n{}"


@pytest.mark.parametrize(
    ("data", "handled", "statuses"),
    [
        pytest.param(b"POST /" + HOST + b"Content-Length: 3 \r\n\r\nabc", [b"abc"], [200], id="space after a value"),
        pytest.param(b"CONNECT //a:443" + HOST + b"\r\n", [], [501], id="CONNECT with a path"),
        pytest.param(
            (b"GET /" + HOST + b"\r\n") * 2 + b"POST /" + HOST + b"Connection: close\r\nContent-Length: 1\r\n\r\nxGARBAGE",
            [b"", b"", b"x"],
            [200, 200, 200],
            id="whole requests before one that is none",
        ),
        pytest.param(
            (b"POST /" + HOST + UPGRADE) * 2, [b"{}"], [200], id="the second of two upgrades is never handled without its body"
        ),
        pytest.param(
            b"POST / HTTP/1.0\r\nConnection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: 1\r\n\r\nxGET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n",
            [b"x"],
            [200],
            id="HTTP/1.0 that asks to upgrade is the last",
        ),
        pytest.param(
            b"POST / HTTP/1.0\r\nConnection: keep-alive, close\r\nContent-Length: 1\r\n\r\nxGET /after" + HOST + b"\r\n",
            [b"x"],
            [200],
            id="close is stronger than keep-alive",
        ),
    ],
)  # fmt: skip
def test_requests(data, handled, statuses):
    for pieces in ([data], [data[at : at + 1] for at in range(len(data))]):
        check(data, pieces, late=False, glance=Glance(), seen=Counter())
    driven = Driven(Glance(), late=False)
    driven.feed([data])
    assert [request[3] for request in driven.handled] == handled
    assert driven.answers() == statuses
    driven.end()
