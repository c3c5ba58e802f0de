import socket

import pytest

from tidegate.config import split_address
from tidegate.control import ports
from tidegate.errors import PortTakenError, SettingError


def test_a_taken_port_is_named_with_its_setting():
    with ports.bind("127.0.0.1:0", "gateway.listen") as held:
        address = ports.address_of(held)
        with pytest.raises(PortTakenError) as refused:
            ports.bind(address, "admin.listen")
    assert refused.value.port == split_address(address)[1]
    assert "admin.listen" in refused.value.hint


def test_a_port_taken_on_loopback_is_taken_for_every_address():
    with ports.bind("127.0.0.1:0", "x") as held, pytest.raises(PortTakenError):
        ports.bind(f"0.0.0.0:{held.getsockname()[1]}", "gateway.listen")


def test_a_free_port_can_be_bound_right_after():
    address = ports.free_port("127.0.0.1:0", "chat.listen")
    ports.bind(address, "chat.listen").close()


def test_a_foreign_address_and_an_unknown_name_are_told_apart():
    with pytest.raises(PortTakenError, match="does not have that address"):
        ports.bind("192.0.2.7:0", "gateway.listen")
    with pytest.raises(SettingError, match=r"gateway\.listen"):
        ports.bind("no-such-host.invalid:0", "gateway.listen")


def test_a_handed_over_socket_is_matched_by_host_and_port():
    with ports.bind("127.0.0.1:0", "x") as held:
        port = held.getsockname()[1]
        assert ports.matches(held, "127.0.0.1:0")
        assert ports.matches(held, f"127.0.0.1:{port}")
        assert not ports.matches(held, f"127.0.0.1:{port + 1}")
        assert not ports.matches(held, f"0.0.0.0:{port}")


def test_urls_are_ones_that_this_machine_can_open():
    assert ports.url_of("0.0.0.0:80") == "http://127.0.0.1:80"
    assert ports.url_of("[::1]:80", "https") == "https://[::1]:80"


@pytest.mark.skipif(not socket.has_ipv6, reason="this machine has no IPv6")
def test_ipv6_addresses_are_bound_and_written_with_brackets():
    with ports.bind("[::1]:0", "x") as held:
        assert ports.address_of(held).startswith("[::1]:")
