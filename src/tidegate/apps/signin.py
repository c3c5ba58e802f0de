"""Sign-in with an API key: any name, and a key whose SHA-256 stands in a file that control writes."""

import asyncio
import hashlib
import hmac
import json
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from pathlib import Path

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tidegate import logs

FREE_FAILURES = 5
"""Wrong keys from one address that cost nothing, in any WINDOW_S."""
WINDOW_S = 60.0
LONGEST_WAIT_S = 8.0
MAX_ADDRESSES = 10_000


class SignInKeys:
    """The keys that may sign in. The file is read at each attempt: a key that was revoked is refused at once."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def digest_of(self, key: str) -> str | None:
        """The digest of `key` if it is valid. Every digest is compared, each in constant time."""
        digest = hashlib.sha256(key.strip().encode()).hexdigest()
        return digest if self.valid(digest) else None

    def valid(self, digest: str) -> bool:
        """Whether the key of this digest is (still) valid."""
        found = False
        for known in self._digests():
            found |= hmac.compare_digest(known, digest)
        return found

    def _digests(self) -> list[str]:
        try:
            digests = json.loads(self._file.read_text("utf-8"))
        except (OSError, ValueError) as error:
            logs.get().error("sign-in keys cannot be read", file=str(self._file), reason=str(error))
            return []
        return (
            [each for each in digests if isinstance(each, str) and each.isascii()] if isinstance(digests, list) else []
        )


class Attempts:
    """How long an address that sent wrong keys has to wait: twice as long with each, up to LONGEST_WAIT_S."""

    def __init__(self) -> None:
        self._failures: OrderedDict[str, deque[float]] = OrderedDict()

    def wait_s(self, address: str, now: float) -> float:
        """Seconds that the next attempt from `address` is held back."""
        failures = self._failures.get(address)
        if failures is None:
            return 0.0
        while failures and failures[0] <= now - WINDOW_S:
            failures.popleft()
        if not failures:
            del self._failures[address]
        over = len(failures) - FREE_FAILURES
        return min(0.5 * 2.0**over, LONGEST_WAIT_S) if over >= 0 else 0.0

    def failed(self, address: str, now: float) -> None:
        """Record a wrong key. The addresses that failed longest ago are forgotten first."""
        self._failures.setdefault(address, deque(maxlen=64)).append(now)
        self._failures.move_to_end(address)
        while len(self._failures) > MAX_ADDRESSES:
            self._failures.popitem(last=False)


class SlowSignIn:
    """A middleware that holds back sign-ins from an address that sent several wrong keys."""

    def __init__(self, app: ASGIApp, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._app, self._clock = app, clock
        self._attempts = Attempts()
        self._waiting: dict[str, asyncio.Lock] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] != "/login" or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        address = scope["client"][0] if scope.get("client") else ""

        async def send_counted(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] == 401:
                self._attempts.failed(address, self._clock())
                logs.get().warning("sign-in refused", address=address)
            await send(message)

        # One attempt at a time from one address, or many at once would all be the first.
        lock = self._waiting.setdefault(address, asyncio.Lock())
        try:
            async with lock:
                await asyncio.sleep(self._attempts.wait_s(address, self._clock()))
                await self._app(scope, receive, send_counted)
        finally:
            if not lock.locked() and self._waiting.get(address) is lock:
                del self._waiting[address]
