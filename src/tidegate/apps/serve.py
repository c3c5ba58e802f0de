"""`python -m tidegate.apps.serve`: the chat page, in a process of its own.

Events go to stderr as JSON lines. SIGTERM ends it within about a second, open pages or not.
"""

import argparse
import asyncio
import contextlib
import logging
import os
import secrets
import shutil
import signal
import socket
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import uvicorn
from starlette.types import ASGIApp

from tidegate import logs
from tidegate.apps import standins
from tidegate.apps.site import write_site
from tidegate.config import split_address
from tidegate.errors import OperatorError, PortTakenError
from tidegate.home import write_private

if TYPE_CHECKING:
    from tidegate.apps.chat.upstream import Upstream

GRACE_S = 1
"""How long open requests and websockets have at the end."""

FOREIGN = ("CHAINLIT_", "LITERAL_", "OAUTH_", "SLACK_", "TEAMS_", "DISCORD_")
"""Environment variables by which Chainlit would switch on services that are not ours (and DATABASE_URL, its storage)."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the page until SIGTERM or Ctrl-C; returns the exit code."""
    began = time.monotonic()
    options = _parser().parse_args(argv)
    logs.configure_child()
    logging.getLogger("chainlit").setLevel(logging.ERROR)  # it warns of each page that has no readme
    for name in ("uvicorn", "httpx2"):  # start and end are told here; each request to the gateway, by the gateway
        logging.getLogger(name).setLevel(logging.WARNING)
    try:
        listener = _listen(options.listen)
        with contextlib.closing(listener):
            return _run(options, listener, began)
    except OperatorError as error:
        logs.get().error(str(error), hint=error.hint)
        return error.exit_code


def _run(options: argparse.Namespace, listener: socket.socket, began: float) -> int:
    root: Path = options.data_dir.absolute() / "chat"
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_site(root, language=options.language)
    _set_environment(root, sign_in=options.sign_in_keys_file is not None)
    standins.install()
    host, port = listener.getsockname()[:2]
    try:
        asyncio.run(_serve(options, listener, f"http://{f'[{host}]' if ':' in host else host}:{port}", began))
    finally:
        shutil.rmtree(root / ".files", ignore_errors=True)
    return 0


async def _serve(options: argparse.Namespace, listener: socket.socket, url: str, began: float) -> None:
    page, upstream = _build(options)
    server = _Server(
        uvicorn.Config(
            page,
            log_config=None,
            access_log=False,
            lifespan="off",  # Chainlit's opens a browser, and ends the process at once
            ws="wsproto",
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=GRACE_S,
        )
    )
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, server.handle_exit, number, None)
    logs.get().info("chat page ready", url=url, seconds=round(time.monotonic() - began, 2))
    try:
        await server.serve(sockets=[listener])
    finally:
        await upstream.close()
        logs.get().info("chat page ended")


def _build(options: argparse.Namespace) -> "tuple[ASGIApp, Upstream]":
    from tidegate.apps.chat.handlers import Chat
    from tidegate.apps.chat.upstream import Upstream
    from tidegate.apps.guard import HostRule
    from tidegate.apps.main import page_of
    from tidegate.apps.signin import SignInKeys

    keys = SignInKeys(options.sign_in_keys_file) if options.sign_in_keys_file else None
    upstream = Upstream(options.gateway_url, options.key_file, options.gateway_certificate)
    chat = Chat(
        upstream,
        system_prompt=options.system_prompt,
        history_tokens=options.history_tokens,
        language=options.language,
        keys=keys,
    )
    hosts = HostRule(split_address(options.listen)[0], options.allowed_host)
    return page_of(chat, upstream, hosts=hosts, keys=keys, language=options.language), upstream


class _Server(uvicorn.Server):
    """Signals are ours: uvicorn raises them again at its end, which would make a wanted end look like a death."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _listen(address: str) -> socket.socket:
    """Bound and listening before the imports: who connects meanwhile waits instead of being refused."""
    host, port = split_address(address)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(512)
    except OSError as error:
        listener.close()
        raise PortTakenError(host, port, "chat.listen", reason=os.strerror(error.errno or 0)) from error
    return listener


def _set_environment(root: Path, *, sign_in: bool) -> None:
    """What Chainlit reads when it is imported."""
    for name in list(os.environ):
        if name.startswith(FOREIGN) or name == "DATABASE_URL":
            del os.environ[name]
    os.environ["CHAINLIT_APP_ROOT"] = str(root)
    os.environ["CHAINLIT_ENV_FILE"] = os.devnull  # not the .env of the folder it is started in
    if sign_in:
        os.environ["CHAINLIT_AUTH_SECRET"] = _auth_secret(root / "auth.secret")


def _auth_secret(file: Path) -> str:
    """Signs the cookies of who is signed in; kept, so that a restart signs nobody out."""
    with contextlib.suppress(FileNotFoundError):
        secret = file.read_text("ascii").strip()
        if len(secret) >= 32:
            return secret
    secret = secrets.token_urlsafe(48)
    write_private(file, secret.encode())
    return secret


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tidegate.apps.serve", description="the chat page")
    parser.add_argument("--listen", required=True, type=_address, metavar="HOST:PORT")
    parser.add_argument("--gateway-url", required=True, metavar="URL")
    parser.add_argument("--gateway-certificate", type=Path, metavar="FILE")
    parser.add_argument("--data-dir", required=True, type=Path, metavar="DIR", help="its files go to DIR/chat")
    parser.add_argument("--key-file", type=Path, metavar="FILE", help="the key it sends to the gateway")
    parser.add_argument(
        "--sign-in-keys-file", type=Path, metavar="FILE", help="a JSON list of the SHA-256 of keys that may sign in"
    )
    parser.add_argument("--language", choices=("auto", "en-US", "zh-CN"), default="auto")
    parser.add_argument("--system-prompt", default="", metavar="TEXT")
    parser.add_argument("--history-tokens", type=int, default=1536, metavar="N")
    parser.add_argument("--allowed-host", action="append", default=[], metavar="NAME")
    return parser


def _address(value: str) -> str:
    try:
        split_address(value)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return value


if __name__ == "__main__":
    _code = main()
    logging.shutdown()
    # All is closed; taking a thousand modules apart would cost another half a second.
    os._exit(_code)
