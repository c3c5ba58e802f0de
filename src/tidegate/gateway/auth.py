"""Who asks: the key of a request, and what an anonymous listener lets in.

An anonymous listener serves the people of its own machine. A browser there could be made to speak for a stranger's
page, so it answers only to its own names (DNS rebinding), takes no forms, and nothing that a proxy forwarded.
"""

import hashlib
import ipaddress
import time
from collections.abc import Callable, Iterable
from typing import Final

from tidegate.errors import BadRequest, Forbidden, Unauthorized
from tidegate.http import Request
from tidegate.types import FleetSnapshot, KeyView

LOOPBACK_NAMES: Final = frozenset(("localhost", "127.0.0.1", "[::1]", "::1"))
FORWARDED: Final = frozenset((b"x-forwarded-for", b"forwarded", b"x-real-ip"))
JSON_TYPE: Final = b"application/json"
FORMS: Final = (b"application/x-www-form-urlencoded", b"multipart/form-data", b"text/plain")


def host_name(header: bytes) -> str:
    """The name in a Host header, without its port, in lower case."""
    text = header.decode("latin-1").strip().lower()
    if text.startswith("["):
        return text.partition("]")[0] + "]"
    return text.partition(":")[0]


def is_loopback(address: str) -> bool:
    """Whether an IP address is this machine's own."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return False
    mapped = getattr(found, "ipv4_mapped", None)
    return (mapped or found).is_loopback


class Gatekeeper:
    """Lets requests in by key, or, where no key is required, by the rules of an anonymous listener."""

    def __init__(self, snapshot: FleetSnapshot, listen_host: str, now_s: Callable[[], float] = time.time) -> None:
        """`now_s` gives Unix time."""
        self._now_s = now_s
        self._required = snapshot.keys_required
        self._keys = {key.digest: key for key in snapshot.keys}
        self._any_address = listen_host in {"0.0.0.0", "::", ""}  # noqa: S104 - compared, not bound
        self._last_host = b"localhost"
        """The last Host that was let in: nearly always the next one too."""
        self._hosts = LOOPBACK_NAMES | {
            listen_host.lower(),
            f"[{listen_host.lower()}]",
            *map(str.lower, snapshot.options.allowed_hosts),
        }

    def admit(self, request: Request) -> KeyView | None:
        """The key of a request, None for an anonymous one.

        Raises Unauthorized, Forbidden or BadRequest.
        """
        if self._required:
            return self._key(request.headers.get(b"authorization", b""))
        if request.headers.get(b"host") != self._last_host:
            self.check_host(request)
        self._check_anonymous(request)
        return None

    def check_host(self, request: Request) -> None:
        """Raises Forbidden for a request to a name that is not this listener's (DNS rebinding)."""
        host = request.headers.get(b"host", b"localhost")
        self._check_name(host_name(host))
        self._last_host = host

    def _key(self, authorization: bytes) -> KeyView:
        scheme, _, secret = authorization.partition(b" ")
        secret = secret.strip()
        if scheme.lower() != b"bearer" or not secret:
            raise Unauthorized(
                "you did not provide an API key; send it as `Authorization: Bearer KEY`", code="missing_api_key"
            )
        key = self._keys.get(hashlib.sha256(secret).hexdigest())
        if key is None or (key.expires_at_s is not None and key.expires_at_s <= self._now_s()):
            raise Unauthorized("the API key is not valid", code="invalid_api_key")
        return key

    def _check_anonymous(self, request: Request) -> None:
        headers = request.headers
        if not FORWARDED.isdisjoint(headers):
            raise Forbidden(
                "a forwarded request needs a key: without keys only this machine is served", code="forwarded_anonymous"
            )
        content_type = headers.get(b"content-type")
        if content_type == JSON_TYPE:
            return
        # a page may send a body of no type to anybody without asking first, as it may a form
        untyped = content_type is None and b"origin" in headers and request.method == b"POST"
        if untyped or (content_type is not None and content_type.lower().startswith(FORMS)):
            raise BadRequest("send `Content-Type: application/json`", code="invalid_content_type")

    def _check_name(self, name: str) -> None:
        if name not in self._hosts and not (self._any_address and _is_address(name)):
            raise Forbidden(
                f"this listener does not answer to the name {name[:100]!r}; gateway.allowed_hosts can add it",
                code="host_not_allowed",
            )


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return False
    return True


def in_networks(address: str, networks: Iterable[str]) -> bool:
    """Whether an IP address lies in one of these networks; False for what is no address."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return False
    found = getattr(found, "ipv4_mapped", None) or found
    return any(found in ipaddress.ip_network(network, strict=False) for network in networks)
