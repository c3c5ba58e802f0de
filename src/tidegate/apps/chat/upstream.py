"""The gateway, as this page sees it: an OpenAI API that may be away for a while."""

import ssl
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Any

import openai
from openai import AsyncOpenAI, DefaultAsyncHttpxClient

from tidegate import logs
from tidegate.apps.chat.history import ChatMessage, estimate_tokens
from tidegate.apps.chat.trouble import Kind, TroubleError, trouble_of

CONNECT_TIMEOUT_S = 5.0
SILENCE_TIMEOUT_S = 300.0
"""Longest silence of the gateway: a long prompt on a slow machine, behind others in a queue."""
ASIDE_TIMEOUT_S = 5.0
"""For the small questions beside an answer (which model, how many tokens)."""

ANONYMOUS = "anonymous"


class Upstream:
    """One client for all sessions of this process. `key_file` is read again when the gateway refuses the key.

    `certificate` is the gateway's own: it is asked at this machine's address, which a certificate seldom names.
    """

    def __init__(self, url: str, key_file: Path | None, certificate: Path | None = None) -> None:
        self._key_file = key_file
        self._url = url.rstrip("/")
        self._client = AsyncOpenAI(
            base_url=f"{self._url}/v1",
            api_key=self._read_key(),
            max_retries=0,
            timeout=openai.Timeout(SILENCE_TIMEOUT_S, connect=CONNECT_TIMEOUT_S),
            # A proxy named in the environment is for the internet, never for the gateway.
            http_client=DefaultAsyncHttpxClient(trust_env=False, verify=_trusting(certificate)),
        )
        self._model = ""
        self._counts = True

    @property
    def known_model(self) -> str:
        """The model that answers, as far as it is known; else empty."""
        return self._model

    async def close(self) -> None:
        await self._client.close()

    async def find_model(self) -> str:
        """Ask which model answers: the first that the gateway lists. Raises TroubleError."""
        try:
            models = await self._with_key(lambda client: client.models.list(timeout=ASIDE_TIMEOUT_S))
        except openai.OpenAIError as error:
            raise trouble_of(error, begun=False) from error
        if not models.data:
            raise TroubleError(Kind.LOADING, detail="the gateway lists no model")
        self._model = models.data[0].id
        return self._model

    async def count(self, messages: Sequence[ChatMessage]) -> int:
        """Tokens of `messages` by the engine's own tokenizer, or an estimate on the safe side where it cannot say."""
        if not self._counts:
            return estimate_tokens(messages)
        try:
            body = {"model": self._model or await self.find_model(), "messages": list(messages)}
            answer: Any = await self._client.post(
                f"{self._url}/tokenize", cast_to=object, body=body, options={"timeout": ASIDE_TIMEOUT_S}
            )
            return int(answer["count"])
        except openai.APIStatusError as error:
            if error.status_code in {404, 405, 501}:
                self._counts = False
                logs.get().info("the engine cannot count tokens; they are estimated", status=error.status_code)
        except (TroubleError, openai.OpenAIError, KeyError, TypeError, ValueError) as error:
            logs.get().warning("tokens not counted", reason=str(error))
        return estimate_tokens(messages)

    async def stream(self, messages: Sequence[ChatMessage]) -> AsyncGenerator[str, None]:
        """The pieces of one answer. Closing the generator closes the connection at once. Raises TroubleError."""
        begun = False
        finished = False
        try:
            async with await self._open(messages) as events:
                async for event in events:
                    for choice in event.choices:
                        finished = finished or choice.finish_reason is not None
                        if choice.delta and choice.delta.content:
                            begun = True
                            yield choice.delta.content
        except openai.OpenAIError as error:
            raise trouble_of(error, begun=begun) from error
        except ValueError as error:  # an event that is no JSON
            raise TroubleError(Kind.BROKEN, detail=str(error)) from error
        if not finished:
            raise TroubleError(Kind.BROKEN, detail="the answer ended without a finish_reason")

    async def _open(self, messages: Sequence[ChatMessage]) -> Any:
        async def create(client: AsyncOpenAI) -> Any:
            return await client.chat.completions.create(
                model=self._model or await self.find_model(),
                messages=list(messages),  # type: ignore[arg-type]  # our TypedDict is what its union describes
                stream=True,
            )

        try:
            return await self._with_key(create)
        except openai.NotFoundError:
            known = self._model
            if await self.find_model() == known:
                raise
            self._counts = True  # another model, perhaps another engine
            return await self._with_key(create)

    async def _with_key(self, call: Any) -> Any:
        """`call(client)`; once more with the key read anew when the gateway refuses the one we have."""
        try:
            return await call(self._client)
        except openai.AuthenticationError:
            key = self._read_key()
            if key == self._client.api_key:
                raise
            self._client.api_key = key
            return await call(self._client)

    def _read_key(self) -> str:
        try:
            return (self._key_file.read_text("utf-8").strip() if self._key_file else "") or ANONYMOUS
        except OSError:
            return ANONYMOUS


def _trusting(certificate: Path | None) -> ssl.SSLContext | bool:
    """TLS with nobody but the holder of this certificate, whatever name it was reached by."""
    if certificate is None:
        return True
    context = ssl.create_default_context(cafile=certificate)
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context
