"""What the page does when a chat begins, a question comes, Stop is pressed, the browser leaves."""

# mypy: disallow-untyped-calls=False
# Chainlit's own functions are typed in part only.

import asyncio
from dataclasses import dataclass, field
from typing import Any

import chainlit as cl
from chainlit.context import init_ws_context
from chainlit.server import sio
from chainlit.session import WebsocketSession

from tidegate import logs
from tidegate.apps.chat.answer import answer
from tidegate.apps.chat.history import History, Turn
from tidegate.apps.chat.starters import starters
from tidegate.apps.chat.trouble import Kind, TroubleError, Words, words_of
from tidegate.apps.chat.upstream import Upstream
from tidegate.apps.signin import SignInKeys

RETURN_S = 3.0
"""A browser that lost its connection and is back within this time finds its answer still being written."""

CONVERSATION = "conversation"


@dataclass
class Conversation:
    """One browser's chat. At most one answer is being written; `task` owns it, and its connection to the gateway."""

    history: History
    words: Words
    task: asyncio.Task[None] | None = None

    async def stop(self) -> None:
        """End the answer that is being written, if there is one; what was written stays."""
        if self.task is not None and not self.task.done():
            self.task.cancel()
            await asyncio.wait({self.task})


@dataclass
class Bubble:
    """The message that an answer is shown in. It appears with the first word of the answer, or of a notice."""

    words: Words
    text: str = ""
    message: cl.Message = field(default_factory=lambda: cl.Message(content=""))
    shown: bool = False

    async def begin(self) -> None:
        self.text = ""
        self.message.content = ""

    async def add(self, piece: str) -> None:
        restart = not self.text and self.shown
        self.text += piece
        self.shown = True
        await self.message.stream_token(piece, is_sequence=restart)

    async def wait(self, trouble: TroubleError, seconds: int) -> None:
        await self._show(self.words.waiting(trouble, seconds))

    async def finish(self, notice: str = "", *, error: bool = False) -> None:
        """The last state: what was written, and `notice` below it."""
        self.message.is_error = error
        await self._show(notice)

    async def _show(self, notice: str) -> None:
        self.message.content = "\n\n".join(
            part for part in (self.text.rstrip(), f"*{notice}*" if notice else "") if part
        )
        if self.shown:
            await self.message.update()
        elif self.message.content:
            self.shown = True
            await self.message.send()


class Chat:
    """The callbacks of the chat page. `language` is "auto", or the one language it speaks."""

    def __init__(
        self,
        upstream: Upstream,
        *,
        system_prompt: str,
        history_tokens: int,
        language: str,
        keys: SignInKeys | None,
    ) -> None:
        self._upstream, self._keys = upstream, keys
        self._system_prompt, self._history_tokens, self._language = system_prompt, history_tokens, language
        self._leaving: set[asyncio.Task[None]] = set()

    def register(self) -> None:
        """Hand the callbacks to Chainlit.

        There is none for the start of a chat: its end would take the Stop button from a question that came meanwhile.
        """
        cl.on_message(self.message)
        cl.on_chat_end(self.left)
        cl.set_starters(self.starters)
        # Chainlit's own Stop writes an English sentence and does not reach edited questions.
        sio.on("stop", self.stop)

    async def starters(self, _user: cl.User | None, language: str | None) -> list[cl.Starter]:
        """Questions to begin with, in the page's language, but for a model that speaks English only."""
        return [
            cl.Starter(label=label, message=message)
            for label, message in starters(language or "", self._upstream.known_model)
        ]

    async def message(self, message: cl.Message) -> None:
        """A question, or an edited one, which takes the place of the old and of all that followed."""
        conversation = self._conversation()
        await conversation.stop()
        conversation.history.rewind(message.id)
        conversation.task = asyncio.create_task(self._answer(conversation, message), name=f"answer {message.id}")
        await asyncio.wait({conversation.task})
        failure = None if conversation.task.cancelled() else conversation.task.exception()
        if failure is not None:
            logs.get().error("the chat page failed", exc_info=failure)
            await cl.ErrorMessage(content=conversation.words.failed).send()

    async def stop(self, sid: str) -> None:
        """Stop was pressed in the browser of socket `sid`."""
        session = WebsocketSession.get(sid)
        if session is not None:
            init_ws_context(session)
            await self._conversation().stop()

    async def left(self) -> None:
        """The browser's connection ended. Nobody reads on, unless it comes back in a moment."""
        session: Any = cl.context.session
        conversation = cl.user_session.get(CONVERSATION)
        if isinstance(conversation, Conversation) and conversation.task is not None and not conversation.task.done():
            task = asyncio.create_task(self._stop_unless_back(session, session.socket_id, conversation))
            self._leaving.add(task)
            task.add_done_callback(self._leaving.discard)

    async def _stop_unless_back(self, session: Any, socket_id: str, conversation: Conversation) -> None:
        if not session.to_clear:
            await asyncio.sleep(RETURN_S)
        if session.socket_id == socket_id:
            await conversation.stop()

    def _conversation(self) -> Conversation:
        conversation = cl.user_session.get(CONVERSATION)
        if not isinstance(conversation, Conversation):
            session: Any = cl.context.session
            language = session.language if self._language == "auto" else self._language
            conversation = Conversation(History(self._system_prompt), words_of(language))
            cl.user_session.set(CONVERSATION, conversation)
        return conversation

    async def _answer(self, conversation: Conversation, message: cl.Message) -> None:
        """Write one answer. Whatever happens, the page is told, and what was written is kept."""
        bubble = Bubble(conversation.words)
        history = conversation.history
        try:
            self._check_key()
            prompt = await history.fit(message.content, self._upstream.count, self._history_tokens)
            await answer(self._upstream.stream, prompt, bubble)
            await bubble.finish()
        except asyncio.CancelledError:
            await bubble.finish("" if bubble.text else conversation.words.stopped)
            raise
        except TroubleError as trouble:
            logs.get().warning("no answer", trouble=trouble.kind, detail=trouble.detail)
            await bubble.finish(conversation.words.given_up(trouble), error=True)
        finally:
            if bubble.text:
                history.add(Turn(message.id, message.content, bubble.text))

    def _check_key(self) -> None:
        """A key that was revoked after its owner signed in asks nothing more."""
        if self._keys is None:
            return
        user = cl.context.session.user
        digest = user.metadata.get("key", "") if user is not None else ""
        if not self._keys.valid(digest):
            raise TroubleError(Kind.SIGN_IN)
