"""Who may talk to the page: a middleware in front of everything.

An anonymous page on loopback can be reached by any website its user visits, through a name that is made to point here
(DNS rebinding) or by a websocket, which no browser holds back. So the name in Host must be ours, and the origin of a
request, where there is one, must be the page itself.
"""

import ipaddress
import re
from collections.abc import Iterable
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

MAX_BODY_BYTES = 1024 * 1024
"""Largest body of a request; what the page itself sends is far smaller, and files are not taken."""

_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(:[0-9]{1,5})?")

HEADERS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "x-frame-options": "DENY",
}


class HostRule:
    """Which names the page answers to; the port is not looked at."""

    def __init__(self, listen_host: str, allowed: Iterable[str]) -> None:
        listened = _address(listen_host)
        self._any_address = listened is None or listened.is_unspecified
        self._names = {"localhost", listen_host.lower(), *(name.lower().rstrip(".") for name in allowed)}

    def allows(self, host: str) -> bool:
        """Whether `host`, as it stands in a Host header, is a name of ours."""
        name = host_name(host)
        if name is None:
            return False
        if name in self._names:
            return True
        address = _address(name)
        return address is not None and (address.is_loopback or self._any_address)


def host_name(host: str) -> str | None:
    """The name in `NAME`, `NAME:PORT` or `[IPV6]:PORT`, in lower case; None where there is none."""
    if not _HOST.fullmatch(host):
        return None
    try:
        name = urlsplit(f"//{host}").hostname
    except ValueError:
        return None
    return name.rstrip(".") if name else None


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None


class Guard:
    """Refuses what is not meant for this page, and says in every answer what the page may load."""

    def __init__(self, app: ASGIApp, *, hosts: HostRule, policy: str) -> None:
        self._app, self._hosts = app, hosts
        self._policy = policy
        """Content-Security-Policy, with `{host}` where the page's own address belongs."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in {"http", "websocket"}:
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        status, reason = self._refusal(headers)
        if status:
            await _refuse(scope, receive, send, status, reason)
            return
        policy = self._policy.format(host=headers["host"])

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                answer = MutableHeaders(scope=message)
                answer["content-security-policy"] = policy
                for name, value in HEADERS.items():
                    answer[name] = value
            await send(message)

        await self._app(scope, receive, send_guarded)

    def _refusal(self, headers: Headers) -> tuple[int, str]:
        host = headers.get("host", "")
        if len(headers.getlist("host")) != 1 or not self._hosts.allows(host):
            return 403, (
                f"The chat page does not answer to the name {host!r}. If it is yours, add it to chat.allowed_hosts.\n"
                f"聊天页面不接受主机名 {host!r}。如果这是您的主机名，请把它加入设置 chat.allowed_hosts。\n"
            )
        origin = headers.get("origin")
        if origin is not None and urlsplit(origin).netloc.lower() != host.lower():
            return 403, "The chat page takes requests from itself only.\n聊天页面只接受来自本页面的请求。\n"
        length = headers.get("content-length", "0")
        if headers.get("transfer-encoding") or not length.isdigit():
            return 411, "The length of the body must be given.\n"
        if int(length) > MAX_BODY_BYTES:
            return 413, f"The body is larger than {MAX_BODY_BYTES} bytes.\n"
        return 0, ""


async def _refuse(scope: Scope, receive: Receive, send: Send, status: int, reason: str) -> None:
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.close", "code": 1008, "reason": ""})
        return
    await PlainTextResponse(reason, status_code=status, headers={"connection": "close"})(scope, receive, send)
