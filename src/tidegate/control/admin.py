"""The admin port: what runs, and what an operator may do to it, for whoever can read the token in `run/admin.json`.

Every request must name this machine in its Host header (the name, not the port: a page on another site whose name was
made to point here still sends its own name), must carry the token, and may not be a form, which is all that a page on
another site can send without asking first. Gateways on other hosts have a token of their own, which opens nothing else.
"""

import asyncio
import contextlib
import hmac
import ipaddress
import socket
from collections.abc import Iterator
from typing import Protocol, TypeVar

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from tidegate.channel import LINK_PATH, REPORT_PATH, RemoteHello, RemoteReport
from tidegate.config import split_address
from tidegate.control.reload import ReloadAnswer
from tidegate.control.remote_gateways import LinkAnswer, RemoteGateways
from tidegate.control.status import Status
from tidegate.control.steering import DrainAnswer, LimitAnswer, Limits, ScaleAnswer, Top
from tidegate.errors import (
    BadRequest,
    Forbidden,
    MethodNotAllowed,
    NotFound,
    OperatorError,
    RequestError,
    Unauthorized,
    Unavailable,
    UnsupportedMediaType,
)
from tidegate.openai import error_body

FORMS = ("application/x-www-form-urlencoded", "multipart/form-data", "text/plain")
"""What a page on another site can send without a preflight (the Fetch standard's safelist)."""
ANY_ADDRESS = frozenset({"0.0.0.0", "::"})  # noqa: S104 - compared, not bound
MAX_BODY_BYTES = 64 * 1024
MAX_REPORT_BYTES = 4 * 1024 * 1024
"""Twice what 10,000 rows of usage take, the most that a gateway keeps."""
CLOSE_GRACE_S = 2
MOST_SEQUENCES = 100_000
"""More than any engine computes at once; a larger limit is a slip of the keyboard."""

Message = TypeVar("Message", bound=msgspec.Struct)


class ReloadRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a reload."""

    dry_run: bool = False
    """Only tell the differences."""


class LimitRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a limit that is set by hand."""

    sequences: int
    """Most requests that the replica may have at once, those of all gateways together."""


class ScaleRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a change of a pool's size."""

    replicas: int | None = None
    """How many; None as many as there are, which begins again those that were given up."""


class ReplacedAnswer(msgspec.Struct, frozen=True):
    """Whom a replacement of the data processes has replaced."""

    replaced: tuple[str, ...]


class Operations(Protocol):
    """What the admin port can do; the control process does it."""

    def status(self) -> Status: ...

    async def reload(self, *, apply: bool) -> ReloadAnswer:
        """Raises OperatorError for settings that are wrong; nothing has changed then."""

    async def replace_gateways(self) -> tuple[str, ...]:
        """The names of those replaced. Raises OperatorError when a new one does not come up."""


class Steering(Protocol):
    """What the admin port can do to what runs, beside its settings. Raises NotFound for a replica that is not there."""

    def top(self) -> Top: ...

    def limits(self) -> Limits: ...

    def set_limit(self, replica: str, sequences: int | None) -> LimitAnswer: ...

    def drain(self, replica: str, *, drained: bool) -> DrainAnswer: ...

    async def scale(self, pool: str, replicas: int | None) -> ScaleAnswer:
        """Raises NotFound for a pool that is not there, BadRequest for a size it cannot have."""


class AdminServer:
    """Serves the admin port on a bound socket, inside the control process."""

    def __init__(
        self,
        operations: Operations,
        steering: Steering,
        *,
        token: str,
        listen: str,
        allowed_hosts: tuple[str, ...],
        remote: RemoteGateways | None = None,
        gateway_token: str = "",
    ) -> None:
        """`remote` are the gateways on other hosts, for whom `gateway_token` is enough."""
        self._server = _Server(
            uvicorn.Config(
                application(
                    operations,
                    steering,
                    token=token,
                    listen=listen,
                    allowed_hosts=allowed_hosts,
                    remote=remote,
                    gateway_token=gateway_token,
                ),
                log_config=None,
                log_level="warning",
                access_log=False,
                lifespan="off",
                ws="none",
                server_header=False,
                timeout_graceful_shutdown=CLOSE_GRACE_S,
            )
        )
        self._task: asyncio.Task[None] | None = None
        self._listening: socket.socket | None = None

    def open(self, listening: socket.socket) -> None:
        """Serve; the socket is closed by `close`."""
        self._listening = listening
        self._task = asyncio.get_running_loop().create_task(self._server.serve(sockets=[listening]))

    async def close(self) -> None:
        """Let open requests end, and close the socket."""
        self._server.should_exit = True
        if self._task is not None:
            await self._task
        if self._listening is not None:  # uvicorn leaves it open when it is ended before it came up
            self._listening.close()


def application(
    operations: Operations,
    steering: Steering,
    *,
    token: str,
    listen: str,
    allowed_hosts: tuple[str, ...],
    remote: RemoteGateways | None = None,
    gateway_token: str = "",
) -> Starlette:
    """The admin port as an ASGI application."""

    async def status(_request: Request) -> Response:
        return _json(operations.status())

    async def reload(request: Request) -> Response:
        body = await _body(request)
        asked = _decode(body, ReloadRequest, "a reload") if body else ReloadRequest()
        try:
            return _json(await operations.reload(apply=not asked.dry_run))
        except OperatorError as error:
            raise BadRequest(f"{error}; {error.hint}" if error.hint else str(error), code="invalid_settings") from None

    async def replace_gateways(_request: Request) -> Response:
        try:
            return _json(ReplacedAnswer(await operations.replace_gateways()))
        except OperatorError as error:
            raise Unavailable(str(error), code="not_replaced") from None

    async def health(_request: Request) -> Response:
        return _json({"status": "ok"})

    return Starlette(
        routes=[
            Route("/admin/v1/status", status, methods=["GET"]),
            Route("/admin/v1/reload", reload, methods=["POST"]),
            Route("/admin/v1/gateways/replace", replace_gateways, methods=["POST"]),
            *_steered(steering),
            *(_remote(remote) if remote is not None else ()),
            Route("/health", health, methods=["GET"]),
        ],
        middleware=[Middleware(Guard, token=token, gateway_token=gateway_token, hosts=hosts_of(listen, allowed_hosts))],
        exception_handlers={RequestError: _refusal, 404: _no_such_path, 405: _no_such_method},
    )


def _steered(steering: Steering) -> list[Route]:
    async def top(_request: Request) -> Response:
        return _json(steering.top())

    async def limits(_request: Request) -> Response:
        return _json(steering.limits())

    async def limit(request: Request) -> Response:
        replica = request.path_params["replica"]
        if request.method == "DELETE":
            return _json(steering.set_limit(replica, None))
        sequences = _decode(await _body(request) or b"{}", LimitRequest, "a limit").sequences
        if not 1 <= sequences <= MOST_SEQUENCES:
            raise BadRequest(
                f"sequences: {sequences} is not from 1 to {MOST_SEQUENCES}; to give a replica no more work, drain it",
                param="sequences",
            )
        return _json(steering.set_limit(replica, sequences))

    async def drain(request: Request) -> Response:
        return _json(steering.drain(request.path_params["replica"], drained=request.method == "POST"))

    async def scale(request: Request) -> Response:
        asked = _decode(await _body(request) or b"{}", ScaleRequest, "a pool's size")
        return _json(await steering.scale(request.path_params["pool"], asked.replicas))

    return [
        Route("/admin/v1/pools/{pool}/scale", scale, methods=["POST"]),
        Route("/admin/v1/top", top, methods=["GET"]),
        Route("/admin/v1/limits", limits, methods=["GET"]),
        Route("/admin/v1/limits/{replica}", limit, methods=["PUT", "DELETE"]),
        Route("/admin/v1/replicas/{replica}/drain", drain, methods=["POST", "DELETE"]),
    ]


def _remote(gateways: RemoteGateways) -> list[Route]:
    async def link(request: Request) -> LinkAnswer:
        return gateways.greet(_decode(await _body(request), RemoteHello, "a gateway's greeting"))

    async def report(request: Request) -> Response:
        gateways.take(_decode(await _body(request, MAX_REPORT_BYTES), RemoteReport, "a gateway's report"))
        return _json({"taken": True})

    return [Route(LINK_PATH, link, methods=["POST"]), Route(REPORT_PATH, report, methods=["POST"])]


class Guard:
    """Host, form and token, checked in this order before anything else is looked at."""

    def __init__(self, app: ASGIApp, *, token: str, hosts: frozenset[str], gateway_token: str = "") -> None:
        self._app, self._token, self._hosts, self._gateway_token = app, token, hosts, gateway_token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope)
        try:
            self._check(request)
        except RequestError as error:
            await _error(error)(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _check(self, request: Request) -> None:
        if not self._is_ours(host_name(request.headers.get("host", ""))):
            raise Forbidden("this host name is not one of the admin port's; admin.allowed_hosts can add it")
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind in FORMS or (kind and kind != "application/json"):
            raise UnsupportedMediaType("the admin port takes application/json, and never a form")
        if request.url.path == "/health":
            return
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        shown = given.strip().encode("utf-8", "replace")
        right = hmac.compare_digest(shown, self._token.encode())
        for_gateways = request.url.path in {LINK_PATH, REPORT_PATH} and bool(self._gateway_token)
        if for_gateways and hmac.compare_digest(shown, self._gateway_token.encode()):
            right = True
        if scheme.lower() != "bearer" or not right:
            needed = "the token in run/admin.json" + (" or in gateway.token" if for_gateways else "")
            raise Unauthorized(f"the admin port needs {needed} as a bearer token", code="invalid_api_key")

    def _is_ours(self, name: str) -> bool:
        if name in self._hosts:
            return True
        if self._hosts.isdisjoint(ANY_ADDRESS):
            return False
        try:
            ipaddress.ip_address(name)  # no site can be named so
        except ValueError:
            return False
        return True


def hosts_of(listen: str, allowed_hosts: tuple[str, ...]) -> frozenset[str]:
    """The host names an admin port at `listen` answers to."""
    return frozenset(
        {"localhost", "127.0.0.1", "::1", split_address(listen)[0].lower(), *map(str.lower, allowed_hosts)}
    )


def host_name(header: str) -> str:
    """The name in a Host header, without its port; IPv6 addresses without their brackets."""
    if header.startswith("["):
        name, _, port = header[1:].partition("]")
        with contextlib.suppress(ValueError):
            return str(ipaddress.ip_address(name)) if not port or port.startswith(":") else ""
        return ""
    return header.partition(":")[0].lower().rstrip(".")


class _Server(uvicorn.Server):
    """Signals are the control process's, not uvicorn's."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def _body(request: Request, most: int = MAX_BODY_BYTES) -> bytes:
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > most:
            raise BadRequest(f"the body is over {most} bytes")
    return bytes(body)


def _decode(body: bytes, kind: type[Message], what: str) -> Message:
    """Raises BadRequest, which names the field."""
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        reason, _, field = str(error).partition(" - at `$.")
        field = field.rstrip("`")
        named = f"{field}: {reason}" if field else reason
        raise BadRequest(f"the body is not what {what} takes: {named}", param=field or None) from None
    except msgspec.DecodeError as error:
        raise BadRequest(f"the body is not what {what} takes: {error}") from None


def _json(value: object) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json", headers={"cache-control": "no-store"})


def _error(error: RequestError) -> Response:
    headers = {"www-authenticate": "Bearer"} if error.status == 401 else None
    return Response(error_body(error), error.status, headers, "application/json")


async def _refusal(_request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestError)  # noqa: S101 - it is registered for these alone
    return _error(error)


async def _no_such_path(request: Request, _: Exception) -> Response:
    return _error(NotFound(f"there is nothing at {request.url.path}"))


async def _no_such_method(request: Request, _: Exception) -> Response:
    return _error(MethodNotAllowed(f"{request.method} is not for {request.url.path}"))
