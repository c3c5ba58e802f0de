"""llama.cpp as an engine: a child process of `tidegate.engines.llamacpp_server`, set up for this machine."""

import sys
import time
from typing import Final

from tidegate.config import LlamaCppOptions
from tidegate.engines import readiness
from tidegate.engines.base import EngineFacts, ModelFiles
from tidegate.engines.llamacpp_fit import Fit, Machine, fit, this_machine
from tidegate.engines.process import START_TIMEOUT_S, EngineProcess, OfProcess, Place
from tidegate.gguf import read_header
from tidegate.types import DialectName

SERVER: Final = "tidegate.engines.llamacpp_server"


class LlamaCppEngine(OfProcess):
    """An `Engine`. `machine` is looked at when it starts, unless it is handed in."""

    dialect: DialectName = DialectName.LLAMACPP

    def __init__(
        self,
        files: ModelFiles,
        options: LlamaCppOptions,
        place: Place,
        *,
        machine: Machine | None = None,
        start_timeout_s: float = START_TIMEOUT_S,
    ) -> None:
        super().__init__(EngineProcess(place, start_timeout_s))
        self.fit: Fit | None = None
        """What it was started with."""
        self._files, self._options, self._machine = files, options, machine
        self._started = 0.0

    async def start(self) -> None:
        """Start the child. Raises ModelError when the file is damaged or does not fit in memory, EngineStartError."""
        header = read_header(self._files.path)
        self.fit = fit(header, self._options, self._machine or this_machine(), model=self._files.name)
        self._started = time.monotonic()
        key_file = self._process.new_key()
        await self._process.start(
            [
                *(sys.executable, "-m", SERVER),
                *("--model", str(self._files.path)),
                *("--name", self._files.name),
                *("--host", self._process.place.host),
                *("--slots", str(self.fit.slots)),
                *("--context-tokens", str(self.fit.context_tokens)),
                *("--threads", str(self.fit.threads)),
                *("--batch-tokens", str(self.fit.batch_tokens)),
                *("--micro-batch-tokens", str(self.fit.micro_batch_tokens)),
                *("--key-file", str(key_file)),
                *("--ready-file", str(self._process.place.ready_file)),
            ]
        )

    async def ready(self) -> EngineFacts:
        """Wait for a real one-token answer. Raises EngineStartError."""
        await self._process.ready(self._files.name)
        slots, context = (self.fit.slots, self.fit.context_tokens) if self.fit else (None, None)
        async with readiness.client(self.url, self.api_key) as http:
            props = await readiness.get_json(http, "/props")
        if isinstance(props, dict):
            slots = props.get("total_slots", slots)
            context = props.get("default_generation_settings", {}).get("n_ctx", context)
        return EngineFacts(
            slots=slots,
            context_tokens=context,
            started_s=time.monotonic() - self._started,
            served_name=self._files.name,
            version=self._files.digest,
            tools=readiness.tools_of(props),
        )

    async def stop(self, grace_s: float) -> None:
        """End it; returns when nothing of it is left."""
        await self._process.stop(grace_s)
