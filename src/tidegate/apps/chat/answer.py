"""One answer: streamed to the screen, asked for again while what is in the way passes by itself."""

import asyncio
import math
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Protocol

from tidegate.apps.chat.history import ChatMessage
from tidegate.apps.chat.trouble import Kind, TroubleError

PATIENCE_S = 60.0
"""How long a question waits for an engine that is loading, counted from the first refusal."""
PAUSES_S = (1.0, 2.0, 3.0, 5.0)
"""Pauses before asking again, where the gateway names none; the last is repeated."""


class Screen(Protocol):
    """Where an answer is shown."""

    async def begin(self) -> None:
        """An answer begins; what was shown before goes."""

    async def add(self, piece: str) -> None:
        """More of it."""

    async def wait(self, trouble: TroubleError, seconds: int) -> None:
        """The question will be asked again in `seconds`; what was written stays until then."""


Source = Callable[[Sequence[ChatMessage]], AsyncGenerator[str, None]]


async def answer(
    source: Source,
    messages: Sequence[ChatMessage],
    screen: Screen,
    *,
    patience_s: float = PATIENCE_S,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> None:
    """Stream the answer to `messages`. Raises TroubleError when there is none to be had within `patience_s`."""
    deadline: float | None = None
    tries = 0
    while True:
        try:
            await _once(source, messages, screen)
        except TroubleError as trouble:
            deadline = clock() + patience_s if deadline is None else deadline
            pause = PAUSES_S[min(tries, len(PAUSES_S) - 1)]
            if trouble.retry_after_s is not None:
                pause = max(trouble.retry_after_s, PAUSES_S[0])
            tries += 1
            if not trouble.passes or clock() + pause > deadline:
                raise
            for left in range(math.ceil(pause), 0, -1):
                await screen.wait(trouble, left)
                await sleep(min(1.0, pause))
        else:
            return


async def _once(source: Source, messages: Sequence[ChatMessage], screen: Screen) -> None:
    empty = True
    async with aclosing(source(messages)) as pieces:
        async for piece in pieces:
            if empty:
                piece = piece.lstrip()  # noqa: PLW2901 - blank lines before an answer are noise
                if not piece:
                    continue
                await screen.begin()
                empty = False
            await screen.add(piece)
    if empty:
        raise TroubleError(Kind.EMPTY)
