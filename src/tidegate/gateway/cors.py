"""Cross-origin requests, for the pages that the settings name. Source: the Fetch standard, section 3.3."""

from typing import Final

from tidegate.http import Exchange

METHODS: Final = b"GET, POST, OPTIONS"
HEADERS: Final = b"authorization, content-type, x-request-id, x-request-type"
EXPOSED: Final = b"x-request-id, x-tidegate-replica, retry-after, retry-after-ms"
MAX_AGE_S: Final = b"600"


class Cors:
    """Answers preflights, and adds to every other answer what a browser asks for."""

    def __init__(self, origins: tuple[str, ...]) -> None:
        self._any = "*" in origins
        self._origins = frozenset(origin.rstrip("/").encode("latin-1") for origin in origins)

    def answer(self, exchange: Exchange) -> bool:
        """True if the request was a preflight, which is answered now."""
        headers = exchange.request.headers
        origin = headers.get(b"origin")
        if origin is None or not (self._any or origin in self._origins):
            return False
        allow = [(b"access-control-allow-origin", origin), (b"vary", b"origin")]
        if exchange.request.method == b"OPTIONS" and b"access-control-request-method" in headers:
            preflight = [
                (b"access-control-allow-methods", METHODS),
                (b"access-control-allow-headers", HEADERS),
                (b"access-control-max-age", MAX_AGE_S),
            ]
            exchange.respond(204, [*allow, *preflight])
            return True
        exchange.extra_headers = [*allow, (b"access-control-expose-headers", EXPOSED)]
        return False
