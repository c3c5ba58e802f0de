"""Where a request comes from: the peer of its connection, or what a trusted proxy says of its own client.

Anybody can write `X-Forwarded-For`. It counts only where the peer is one of `gateway.trusted_proxies`, and is read
from its end: each proxy appends the address it saw, so the last one that is no trusted proxy's is the client's, and
what stands before it is that client's own claim.
"""

import ipaddress
import re
from collections.abc import Iterable, Mapping
from typing import Final

FORWARDED: Final = frozenset((b"x-forwarded-for", b"forwarded", b"x-real-ip"))
UNKNOWN: Final = "unknown"
"""A client whose proxy names no address, or whose headers contradict each other."""
MAX_KNOWN: Final = 1024

_FOR: Final = re.compile(r'(?:^|;)\s*for\s*=\s*(?:"([^"]*)"|([^";\s]*))', re.IGNORECASE)
"""The parameter `for` of one element of `Forwarded` (RFC 7239, section 4)."""
_Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def is_loopback(address: str) -> bool:
    """Whether an IP address is this machine's own."""
    found = _parsed(address)
    return found is not None and found.is_loopback


def in_networks(address: str, networks: Iterable[str]) -> bool:
    """Whether an IP address lies in one of these networks; False for what is no address."""
    found = _parsed(address)
    return found is not None and any(found in ipaddress.ip_network(network, strict=False) for network in networks)


def _parsed(address: str) -> _Address | None:
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return None
    return getattr(found, "ipv4_mapped", None) or found


class Proxies:
    """The proxies that are believed about their clients' addresses."""

    def __init__(self, networks: Iterable[str]) -> None:
        self._networks = tuple(networks)
        self._known: dict[tuple[str, bytes, bytes, bytes], str] = {}

    def client(self, peer: str, headers: Mapping[bytes, bytes]) -> str:
        """The address of a request's client; UNKNOWN where a trusted proxy does not say it clearly."""
        if not self._networks:
            return peer
        claim = (
            peer,
            headers.get(b"x-forwarded-for", b""),
            headers.get(b"forwarded", b""),
            headers.get(b"x-real-ip", b""),
        )
        address = self._known.get(claim)
        if address is None:
            if len(self._known) >= MAX_KNOWN:
                self._known.clear()
            address = self._known[claim] = self._find(*claim)
        return address

    def trusts(self, address: str) -> bool:
        """Whether an address is a trusted proxy's."""
        return bool(self._networks) and in_networks(address, self._networks)

    def _find(self, peer: str, chain: bytes, forwarded: bytes, real: bytes) -> str:
        if not self.trusts(peer):
            return peer
        told = []
        if chain:
            told.append([_bare(part) for part in chain.decode("latin-1").split(",")])
        if forwarded:
            matches = [_FOR.search(element) for element in forwarded.decode("latin-1").split(",")]
            told.append([_bare(match[1] or match[2] or "") if match else UNKNOWN for match in matches])
        clients = {self._last_stranger(hops) for hops in told}
        # A proxy writes one of the two and may pass the other on as its client sent it: which is which cannot be seen.
        if len(clients) == 1:
            return clients.pop()
        return UNKNOWN if clients or real else peer

    def _last_stranger(self, hops: list[str]) -> str:
        for hop in reversed(hops):
            if not self.trusts(hop):
                return hop
        return hops[0]


def _bare(node: str) -> str:
    """The address in `1.2.3.4`, `1.2.3.4:567`, `2001:db8::1` or `[2001:db8::1]:567`; UNKNOWN where there is none."""
    node = node.strip().strip('"')
    if node.startswith("["):
        node = node[1:].partition("]")[0]
    elif node.count(":") == 1:
        node = node.partition(":")[0]
    found = _parsed(node)
    return str(found) if found is not None else UNKNOWN
