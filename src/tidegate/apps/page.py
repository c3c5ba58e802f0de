"""The page as it is served: Chainlit's, without anything from outside.

Chainlit's index.html asks Google for fonts and a CDN for KaTeX's style; a network without internet waits on them. Here
they are taken out, and the Content-Security-Policy forbids the browser to load anything from elsewhere, also what a
model's answer names (images, frames).
"""

import asyncio
import base64
import gzip
import hashlib
import mimetypes
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.types import ASGIApp

from tidegate import logs
from tidegate.apps.guard import Guard, HostRule

_OUTSIDE = re.compile(r"<(?:link|script|meta)\b[^>]*\b(?:href|src|content)=\"https?://[^>]*>(?:\s*</script>)?")
_INLINE_SCRIPT = re.compile(r"<script>(.*?)</script>", re.DOTALL)

Translate = Callable[[str], Awaitable[dict[str, Any]]]


def local_html(html: str) -> str:
    """`html` without the elements that load from, or point to, another host."""
    return _OUTSIDE.sub("", html)


def policy_of(html: str) -> str:
    """The Content-Security-Policy under which `html` works; `{host}` stands for the page's own address.

    Inline scripts are allowed by their digests. Inline styles are allowed because Chainlit's parts set them.
    """
    digests = [
        base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in _INLINE_SCRIPT.findall(html)
    ]
    scripts = " ".join(["'self'", *(f"'sha256-{digest}'" for digest in digests)])
    return "; ".join(
        [
            "default-src 'self'",
            f"script-src {scripts}",
            "style-src 'self' 'unsafe-inline'",
            "img-src 'self' blob: data:",  # data: for icons; Markdown of an answer may not name one
            "media-src 'self' blob:",
            "worker-src 'self' blob:",
            # Older Safari does not take 'self' to include websockets.
            "connect-src 'self' ws://{host} wss://{host}",
            "object-src 'none'",
            "base-uri 'none'",
            "form-action 'self'",
            "frame-ancestors 'none'",
        ]
    )


@dataclass(frozen=True)
class Asset:
    plain: bytes
    packed: bytes
    etag: str


class Assets:
    """The page's scripts and styles, compressed once, mended on the way (`mend`)."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ready: dict[str, asyncio.Task[Asset]] = {}

    async def serve(self, request: Request) -> Response:
        """The answer to `/assets/{name}`."""
        name: str = request.path_params["name"]
        path = self._folder / name
        if "/" in name or name.startswith(".") or not path.is_file():
            return Response(status_code=404)
        asset = await self._asset(name)
        headers = {"cache-control": "no-cache", "etag": asset.etag, "vary": "accept-encoding"}
        if request.headers.get("if-none-match") == asset.etag:
            return Response(status_code=304, headers=headers)
        kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
        if "gzip" not in request.headers.get("accept-encoding", ""):
            return Response(asset.plain, media_type=kind, headers=headers)
        return Response(asset.packed, media_type=kind, headers={**headers, "content-encoding": "gzip"})

    async def _asset(self, name: str) -> Asset:
        """One file; asked for by several at once, it is read and compressed once."""
        task = self._ready.get(name)
        if task is None:
            task = asyncio.create_task(asyncio.to_thread(_prepare, self._folder / name))
            self._ready[name] = task
        return await asyncio.shield(task)


def _prepare(path: Path) -> Asset:
    content = path.read_bytes()
    if path.suffix == ".js" and path.name.startswith("index-"):
        content = mend(content)
    etag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    return Asset(content, gzip.compress(content, 6), etag)


_DIRECTIVES = re.compile(rb"\{text:\{58:[\w$]+\},flow:\{58:\[[\w$]+,[\w$]+\]\}\}")


def mend(script: bytes) -> bytes:
    """Chainlit's script without directives in Markdown.

    Its remark-directive takes the `:b` of `a:b` for a directive it does not know, and shows nothing in its place: a
    part of what the model said, or the user asked, is silently missing. Colons (58) then begin no construct.
    """
    mended, found = _DIRECTIVES.subn(b"{text:{},flow:{}}", script)
    if found != 1:
        logs.get().warning("Chainlit's script is not the one known; a colon within a word may hide text", found=found)
    return mended


def build_page(chainlit_app: ASGIApp, *, html: str, assets: Path, translate: Translate, hosts: HostRule) -> Starlette:
    """Chainlit's application with our guard, index page, scripts and sentences in front.

    `translate(language)` gives the page's sentences; `html` is the index page, from `local_html`.
    """

    async def index(_: Request) -> Response:
        return Response(html, media_type="text/html", headers={"cache-control": "no-cache"})

    async def sentences(request: Request) -> Response:
        language = request.query_params.get("language", "en-US")
        if not re.fullmatch(r"[A-Za-z]{2,3}(-[A-Za-z0-9]{1,8}){0,3}", language):
            return Response(status_code=422)
        return JSONResponse({"translation": await translate(language)}, headers={"cache-control": "no-cache"})

    routes = [
        Route("/", index),
        Route("/assets/{name}", Assets(assets).serve),
        Route("/project/translations", sentences),
        Mount("/", chainlit_app),
    ]
    return Starlette(routes=routes, middleware=[Middleware(Guard, hosts=hosts, policy=policy_of(html))])
