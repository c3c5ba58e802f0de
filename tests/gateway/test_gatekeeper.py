"""Names and keys."""

import pytest

from gateway.conftest import key_view
from tidegate.errors import Forbidden, Unauthorized
from tidegate.gateway.auth import Gatekeeper, host_name
from tidegate.gateway.quotas import Quotas
from tidegate.gateway.record import ANONYMOUS, Caller
from tidegate.http.request import Request, RequestLine
from tidegate.types import FleetSnapshot, GatewayOptions

ANY = "0.0.0.0"  # noqa: S104 - compared, not bound


def request(**headers: str) -> Request:
    lines = {name.replace("_", "-").encode(): value.encode() for name, value in headers.items()}
    return Request(RequestLine(b"GET", b"/v1/models"), lines, b"")


@pytest.mark.parametrize(
    ("header", "name"),
    [
        (b"localhost", "localhost"),
        (b"LocalHost:80", "localhost"),
        (b"[::1]:80", "[::1]"),
        (b" a.b:1 ", "a.b"),
        (b"", ""),
    ],
)
def test_the_name_in_a_host_header(header, name):
    assert host_name(header) == name


@pytest.mark.parametrize(
    ("listen", "host", "allowed"),
    [
        ("127.0.0.1", "127.0.0.1:8000", True),
        ("192.168.1.5", "192.168.1.5:8000", True),
        ("192.168.1.5", "192.168.1.6:8000", False),
        (ANY, "192.168.1.6:8000", True),
        (ANY, "[fd00::9]:8000", True),
        (ANY, "evil.example", False),
        ("fd00::9", "[fd00::9]:8000", True),
        ("::", "box.lan", True),
        ("::", "box.lan.evil.example", False),
    ],
)
def test_the_names_an_anonymous_listener_answers_to(listen, host, allowed):
    snapshot = FleetSnapshot(number=1, options=GatewayOptions(allowed_hosts=("Box.lan",)))
    keeper = Gatekeeper(snapshot, listen, Quotas())
    for _ in range(2):
        if allowed:
            assert keeper.admit(request(host=host)).caller == ANONYMOUS
        else:
            with pytest.raises(Forbidden, match=r"gateway\.allowed_hosts"):
                keeper.admit(request(host=host))


def test_a_name_let_in_before_lets_no_other_in():
    keeper = Gatekeeper(FleetSnapshot(number=1), "127.0.0.1", Quotas())
    keeper.admit(request(host="localhost"))
    with pytest.raises(Forbidden):
        keeper.admit(request(host="evil.example"))
    with pytest.raises(Forbidden):
        keeper.admit(request(host="evil.example"))


def test_a_key_is_valid_until_it_expires():
    now = {"s": 100.0}
    view = key_view("secret", expires_at_s=200.0)
    snapshot = FleetSnapshot(number=1, keys=(view,), keys_required=True)
    keeper = Gatekeeper(snapshot, ANY, Quotas(), lambda: now["s"])
    assert keeper.admit(request(authorization="Bearer secret")).caller == Caller(tenant="t", key="k")
    now["s"] = 200.0
    with pytest.raises(Unauthorized) as caught:
        keeper.admit(request(authorization="Bearer secret"))
    assert "secret" not in str(caught.value)
