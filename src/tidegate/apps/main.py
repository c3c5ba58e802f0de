"""Registers the assistants with Chainlit, and gives the page that serves them.

Chainlit reads its folder (`tidegate.apps.site`) when it is imported, and `chainlit.server` makes its application then;
so this module is imported by `tidegate.apps.serve` once all of that is in place, and by nothing else.
"""

# mypy: disallow-untyped-calls=False
# Chainlit's own functions are typed in part only.

import asyncio
from pathlib import Path
from typing import Any

import chainlit as cl
import chainlit.server
from chainlit.config import config
from starlette.types import ASGIApp

from tidegate.apps.chat.handlers import Chat
from tidegate.apps.chat.starters import footnote, invitation
from tidegate.apps.chat.trouble import TroubleError
from tidegate.apps.chat.upstream import Upstream
from tidegate.apps.guard import HostRule
from tidegate.apps.page import build_page, local_html
from tidegate.apps.signin import SignInKeys, SlowSignIn

MODEL_TIMEOUT_S = 1.0
"""How long the page waits to learn the model's name before it comes without."""


def page_of(chat: Chat, upstream: Upstream, *, hosts: HostRule, keys: SignInKeys | None, language: str) -> ASGIApp:
    """The whole page. `language` is "auto", "en-US" or "zh-CN"."""
    chat.register()
    if keys is not None:
        _register_sign_in(keys)
    config.ui.default_theme = "system"  # the page knows it, its settings do not
    html = local_html(chainlit.server.get_html_template(""))

    def same_html(_root_path: str) -> str:
        return html

    # Chainlit answers every path it does not know (/login, /thread/…) with the index page, made by this function.
    chainlit.server.get_html_template = same_html

    async def sentences(browser_language: str) -> dict[str, Any]:
        wanted = browser_language if language == "auto" else language
        translation: dict[str, Any] = config.load_translation(wanted)
        model, words = await _model_name(upstream), translation["chat"]
        words["watermark"] = footnote(wanted, model, words["watermark"])
        words["input"]["placeholder"] = invitation(wanted, model, words["input"]["placeholder"])
        return translation

    page = build_page(
        chainlit.server.app,
        html=html,
        assets=Path(chainlit.server.build_dir) / "assets",
        translate=sentences,
        hosts=hosts,
    )
    return SlowSignIn(page) if keys is not None else page


async def _model_name(upstream: Upstream) -> str:
    """The name of the model that answers now; the last known one while the gateway is away."""
    try:
        return await asyncio.wait_for(upstream.find_model(), MODEL_TIMEOUT_S)
    except (TroubleError, TimeoutError):
        return upstream.known_model


def _register_sign_in(keys: SignInKeys) -> None:
    async def sign_in(name: str, key: str) -> cl.User | None:
        digest = keys.digest_of(key)
        if digest is None:
            return None
        return cl.User(identifier=name.strip()[:64] or "user", metadata={"key": digest})

    cl.password_auth_callback(sign_in)
