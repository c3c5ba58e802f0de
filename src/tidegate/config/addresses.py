"""Addresses to listen on: `HOST:PORT`."""

import ipaddress
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator

ANY_HOSTS = frozenset({"0.0.0.0", "::"})  # noqa: S104 - recognised, not bound


def split_address(value: str) -> tuple[str, int]:
    """`HOST:PORT` or `[IPV6]:PORT` as host and port; `:PORT` means every address. ValueError says what is wrong."""
    host, colon, port = value.rpartition(":")
    if not colon or not (port.isascii() and port.isdigit()) or "/" in host or any(map(str.isspace, host)):
        raise ValueError(f"{value!r} is not HOST:PORT, as in 127.0.0.1:8000")
    if int(port) > 65_535:
        raise ValueError(f"{value!r}: a port is at most 65535")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
        ipaddress.IPv6Address(host.partition("%")[0])
    elif ":" in host:
        raise ValueError(f"{value!r}: an IPv6 address is written [::1]:8000")
    return host or "0.0.0.0", int(port)  # noqa: S104 - ":8000" means every address, as everywhere


def is_loopback(listen: str) -> bool:
    """Whether only this machine can connect to `HOST:PORT`."""
    host, _ = split_address(listen)
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False  # a name: where it leads is not known here


def clash(one: str, other: str) -> bool:
    """Whether two addresses cannot both be listened on. Port 0 lets the kernel choose, and never clashes."""
    (host, port), (other_host, other_port) = split_address(one), split_address(other)
    if port != other_port or port == 0:
        return False
    return _canonical(host) == _canonical(other_host) or bool({host, other_host} & ANY_HOSTS)


def _canonical(host: str) -> str:
    return "127.0.0.1" if host.lower() == "localhost" else host.lower()


def _address(value: str) -> str:
    split_address(value)
    return value


Address = Annotated[str, AfterValidator(_address)]


def is_loopback_url(url: str) -> bool:
    """Whether only processes of the machine that a URL was made on can reach what it names."""
    try:
        name = (urlsplit(url).hostname or "").lower()
    except ValueError:
        return False
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        address = ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        return False
    return address.is_loopback or address.is_unspecified


def is_same_host(peer: str, own: str) -> bool:
    """Whether the two ends of a connection, given by their IP addresses, are on one machine, as far as these tell."""
    if peer == own:
        return True
    try:
        return ipaddress.ip_address(peer.partition("%")[0]).is_loopback
    except ValueError:
        return False
