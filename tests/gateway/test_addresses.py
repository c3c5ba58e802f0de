"""Addresses of clients, and who is believed about them."""

import pytest

from tidegate.gateway.addresses import UNKNOWN, Proxies, in_networks, is_loopback


@pytest.mark.parametrize(
    ("address", "own"),
    [
        ("127.0.0.1", True),
        ("127.8.0.1", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("10.0.0.1", False),
        ("", False),
    ],
)
def test_loopback_addresses(address, own):
    assert is_loopback(address) is own


@pytest.mark.parametrize(
    ("address", "inside"),
    [
        ("10.1.2.3", True),
        ("::ffff:10.1.2.3", True),
        ("11.0.0.1", False),
        ("fd00::5", True),
        ("fe80::1", False),
        ("", False),
    ],
)
def test_networks_of_both_families(address, inside):
    assert in_networks(address, ("10.0.0.0/8", "fd00::/16")) is inside


PROXY = "10.0.0.9"
INNER = "10.0.0.8"
CLIENT = "203.0.113.7"


@pytest.mark.parametrize(
    ("peer", "headers", "address"),
    [
        (PROXY, {}, PROXY),
        (CLIENT, {b"x-forwarded-for": b"127.0.0.1"}, CLIENT),
        (PROXY, {b"x-forwarded-for": CLIENT.encode()}, CLIENT),
        (PROXY, {b"x-forwarded-for": b"127.0.0.1, 203.0.113.7"}, CLIENT),
        (PROXY, {b"x-forwarded-for": b"203.0.113.7, 10.0.0.8"}, CLIENT),
        (PROXY, {b"x-forwarded-for": b"203.0.113.7:4711"}, CLIENT),
        (PROXY, {b"x-forwarded-for": b"[2001:db8::1]:4711"}, "2001:db8::1"),
        (PROXY, {b"x-forwarded-for": b"2001:db8::1"}, "2001:db8::1"),
        (PROXY, {b"x-forwarded-for": b"10.0.0.8"}, INNER),
        (PROXY, {b"x-forwarded-for": b"localhost"}, UNKNOWN),
        (PROXY, {b"x-forwarded-for": b","}, UNKNOWN),
        (PROXY, {b"forwarded": b"for=203.0.113.7;proto=https"}, CLIENT),
        (PROXY, {b"forwarded": b'for=127.0.0.1, proto=https; For="203.0.113.7:1"'}, CLIENT),
        (PROXY, {b"forwarded": b'for="[2001:db8::1]:1"'}, "2001:db8::1"),
        (PROXY, {b"forwarded": b"for=_hidden"}, UNKNOWN),
        (PROXY, {b"forwarded": b"proto=https"}, UNKNOWN),
        (PROXY, {b"x-forwarded-for": CLIENT.encode(), b"forwarded": b"for=203.0.113.7"}, CLIENT),
        (PROXY, {b"x-forwarded-for": CLIENT.encode(), b"forwarded": b"for=127.0.0.1"}, UNKNOWN),
        (PROXY, {b"x-real-ip": b"127.0.0.1"}, UNKNOWN),
        ("::ffff:10.0.0.9", {b"x-forwarded-for": CLIENT.encode()}, CLIENT),
        ("", {b"x-forwarded-for": CLIENT.encode()}, ""),
    ],
)
def test_only_a_trusted_proxy_says_where_a_request_comes_from(peer, headers, address):
    proxies = Proxies(("10.0.0.0/24",))
    for _ in range(2):
        assert proxies.client(peer, headers) == address


def test_without_trusted_proxies_the_peer_is_the_client():
    assert Proxies(()).client(PROXY, {b"x-forwarded-for": b"127.0.0.1"}) == PROXY
    assert not Proxies(()).trusts("127.0.0.1")


def test_what_is_remembered_of_clients_is_bounded():
    proxies = Proxies(("10.0.0.0/24",))
    for number in range(5000):
        proxies.client(PROXY, {b"x-forwarded-for": b"203.0.113.7, 198.51.100.%d" % (number % 256), b"forwarded": b""})
        proxies.client(PROXY, {b"x-forwarded-for": b"203.0.113.%d" % (number % 256), b"x-real-ip": b"%d" % number})
    assert len(proxies._known) <= 1024
