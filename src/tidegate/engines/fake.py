"""The fake engine as a replica: a child process of `tidegate fake-engine`, for trials of everything around an engine."""

import sys
import time

from tidegate.config import FakeOptions
from tidegate.engines.base import EngineFacts
from tidegate.engines.process import START_TIMEOUT_S, EngineProcess, OfProcess, Place
from tidegate.types import DialectName

CONTEXT_TOKENS = 32_768


class FakeEngine(OfProcess):
    """An `Engine` that speaks as vLLM does."""

    dialect: DialectName = DialectName.VLLM

    def __init__(
        self, model: str, options: FakeOptions, place: Place, *, start_timeout_s: float = START_TIMEOUT_S
    ) -> None:
        super().__init__(EngineProcess(place, start_timeout_s))
        self._model, self._options = model, options
        self._started = 0.0

    async def start(self) -> None:
        """Start the child. Raises EngineStartError."""
        self._started = time.monotonic()
        options = self._options
        await self._process.start(
            [
                *(sys.executable, "-m", "tidegate", "fake-engine", "--port", "0"),
                *("--host", self._process.place.host),
                *("--model", self._model),
                *("--slots", str(options.slots)),
                *("--tokens", str(options.tokens)),
                *("--gap-ms", str(options.gap_ms)),
                *("--first-ms", str(options.first_ms)),
                *("--context-tokens", str(CONTEXT_TOKENS)),
                *("--ready-file", str(self._process.place.ready_file)),
            ]
        )

    async def ready(self) -> EngineFacts:
        """Wait for one token. Raises EngineStartError."""
        await self._process.ready(self._model)
        return EngineFacts(
            slots=self._options.slots,
            context_tokens=CONTEXT_TOKENS,
            started_s=time.monotonic() - self._started,
            embeddings=True,
            served_name=self._model,
            version=f"fake:{self._model}",
        )

    async def stop(self, grace_s: float) -> None:
        """End it; returns when nothing of it is left."""
        await self._process.stop(grace_s)
