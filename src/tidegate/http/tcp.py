"""What the kernel knows of a connection."""

import asyncio
import socket
import struct
from typing import Final

_INFO_BYTES: Final = 192
_LAST_RECEIVED_MS: Final = 52
_RECEIVED_BYTES: Final = 128
"""Offsets in `struct tcp_info` of Linux (include/uapi/linux/tcp.h), which only ever grows at its end."""


def silent_s(transport: asyncio.BaseTransport) -> float | None:
    """Seconds since the other side last sent a byte; None if it never has, or where the kernel does not tell.

    Costs some microseconds when it is asked, and nothing for the bytes that pass.
    """
    sock = transport.get_extra_info("socket")
    option = getattr(socket, "TCP_INFO", None)
    if sock is None or option is None:
        return None
    try:
        info = sock.getsockopt(socket.IPPROTO_TCP, option, _INFO_BYTES)
        (received,) = struct.unpack_from("<Q", info, _RECEIVED_BYTES)
        (last_ms,) = struct.unpack_from("<I", info, _LAST_RECEIVED_MS)
    except (OSError, struct.error):
        return None
    return last_ms / 1000 if received else None
