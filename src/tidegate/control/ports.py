"""Listening sockets: bound before anything starts, so that a taken port is one clear message."""

import errno
import os
import socket

from tidegate.config import split_address
from tidegate.errors import PortTakenError, SettingError

BACKLOG = 4096
"""Connections that wait while a gateway is replaced; the kernel caps it at net.core.somaxconn."""


def bind(listen: str, setting: str) -> socket.socket:
    """A listening socket at `HOST:PORT`. Raises PortTakenError or SettingError, naming `setting`."""
    host, port = split_address(listen)
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except socket.gaierror as error:
        raise SettingError(setting, f"{host!r} is not the name of an address: {error.strerror}") from None
    family, kind, protocol, _, address = found[0]
    listening = socket.socket(family, kind, protocol)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(BACKLOG)
        listening.setblocking(False)
    except OSError as error:
        listening.close()
        raise PortTakenError(host, port, setting, reason=_reason(error, port)) from None
    except BaseException:
        listening.close()
        raise
    return listening


def free_port(listen: str, setting: str) -> str:
    """`HOST:PORT` that a child can bind a moment later; port 0 becomes a free one. Raises as `bind` does."""
    with bind(listen, setting) as listening:
        return address_of(listening)


def address_of(listening: socket.socket) -> str:
    """`HOST:PORT` that a socket is bound to."""
    host, port = listening.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def matches(listening: socket.socket, listen: str) -> bool:
    """Whether a socket is what `bind(listen)` would have made; any port does for port 0."""
    host, port = split_address(listen)
    try:
        wanted = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except socket.gaierror:
        return False
    bound = listening.getsockname()
    return listening.family == wanted[0] and bound[0] == wanted[4][0] and (not port or bound[1] == port)


def url_of(address: str, scheme: str = "http") -> str:
    """The URL at which this machine reaches `HOST:PORT`."""
    host, port = split_address(address)
    if host in {"0.0.0.0", "::"}:  # noqa: S104 - compared, not bound
        host = "127.0.0.1" if host == "0.0.0.0" else "::1"  # noqa: S104 - as above
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def lan_address() -> str | None:
    """The address of this machine as others on its network know it; None without a network."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # chooses a route and sends nothing (TEST-NET-1, RFC 5737)
        except OSError:
            return None
        host: str = probe.getsockname()[0]
    return None if host.startswith("127.") else host


def _reason(error: OSError, port: int) -> str:
    if error.errno == errno.EADDRINUSE:
        return "it is already in use"
    if error.errno == errno.EACCES:
        return (
            f"ports below 1024 are for the superuser, and this is user {os.getuid()}" if port < 1024 else "not allowed"
        )
    if error.errno == errno.EADDRNOTAVAIL:
        return "this machine does not have that address"
    return error.strerror or str(error)
