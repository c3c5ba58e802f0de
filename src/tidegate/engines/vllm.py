"""vLLM as an engine: a child process in an environment of its own, spoken to over HTTP.

Its port is held for it from before its start until it listens, so that nobody else gets it in the minute between.
"""

import asyncio
import itertools
import json
import shutil
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import httpx

from tidegate.config import VllmOptions
from tidegate.engines import old_flags, readiness, vllm_causes, vllm_turn_end
from tidegate.engines.base import EngineFacts, ModelFiles
from tidegate.engines.process import EngineProcess, OfProcess, Place
from tidegate.engines.vllm_program import Program
from tidegate.errors import EngineStartError, SettingError
from tidegate.types import DialectName

ANY_VERSION: Final = "0"
"""Of a program that does not tell: only another engine's flags are sure to be wrong for it."""
KEEP_ALIVE_S: Final = 75
"""vLLM closes idle connections after 5 s by itself; the gateway's pool lets go of one after 4 s, and is the first."""
TEARDOWN_S: Final = 10.0
"""What vLLM takes to end its processes when nothing is in flight: 4 s were seen."""
NOT_TO_CHANGE: Final = frozenset({"--host", "--port", "--uds", "--served-model-name", "--api-key", "--model"})
"""What `args` may not change: the gateway would no longer find it."""

ENVIRONMENT: Final[Mapping[str, str]] = {
    "PYTHONPATH": "",  # of ours; another Python's packages would be taken for its own
    "PYTHONHOME": "",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_LOGGING_COLOR": "0",
    "NO_COLOR": "1",
    "VLLM_HTTP_TIMEOUT_KEEP_ALIVE": str(KEEP_ALIVE_S),
}


@dataclass(frozen=True)
class Flags:
    """What was chosen for a model on this machine."""

    argv: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    slots: int | None = None
    """Sequences at once, as far as that was chosen."""


class VllmEngine(OfProcess):
    """An `Engine`. `program` finds the vLLM, `choose` its flags; both are asked at each start."""

    dialect: DialectName = DialectName.VLLM

    def __init__(
        self,
        files: ModelFiles,
        options: VllmOptions,
        place: Place,
        *,
        program: Callable[[], Program],
        choose: Callable[[Program], Flags],
    ) -> None:
        super().__init__(
            EngineProcess(place, options.start_timeout_s, answers=self._answers, last_words=vllm_causes.last_words)
        )
        self.flags = Flags()
        """What it was started with."""
        self._files, self._options, self._place = files, options, place
        self._find, self._choose = program, choose
        self._embeddings = False
        self._held: socket.socket | None = None
        self._started = 0.0

    async def start(self) -> None:
        """Start the child. Raises OperatorError where there is no such vLLM or the model does not fit, EngineStartError."""
        for flag in self._options.args:
            if flag.partition("=")[0] in NOT_TO_CHANGE:
                raise SettingError("pool.options.args", f"{flag} is Tidegate's to choose")
        program = self._find()
        old_flags.refuse(self._options.args, "pool.options.args", program.version or ANY_VERSION)
        self.flags = await asyncio.to_thread(self._choose, program)
        self._started = time.monotonic()
        self._process.new_key()
        self._let_go()
        self._held = hold_port(self._place.host)
        port = self._held.getsockname()[1]
        argv = [
            *program.start,
            str(self._files.path),
            *flags_of_ours(self._files.name, self._place.host, port, self._options.shutdown_timeout_s),
            *self._generation(),
            *self.flags.argv,
            *self._options.args,
        ]
        env = {**ENVIRONMENT, "VLLM_API_KEY": self.api_key, **self.flags.env, **self._options.env}
        if program.preload:
            env.setdefault("LD_PRELOAD", program.preload)
        await self._process.start(argv, env=env, url=f"http://{self._place.host}:{port}")

    async def ready(self) -> EngineFacts:
        """Wait for a real answer. Raises EngineStartError."""
        try:
            await self._process.ready(self._files.name)
        finally:
            self._let_go()
            self._forget_generation()
        async with readiness.client(self.url, self.api_key) as http:
            models = await readiness.get_json(http, "/v1/models")
        return EngineFacts(
            slots=self.flags.slots,
            context_tokens=_context(models),
            started_s=time.monotonic() - self._started,
            embeddings=self._embeddings,
            served_name=self._files.name,
            version=self._files.digest,
            priorities=_by_priority((*self.flags.argv, *self._options.args)),
        )

    async def stop(self, grace_s: float) -> None:
        """End it; returns when nothing of it is left. What it has in flight may be finished, as its settings say."""
        self._let_go()
        await self._process.stop(max(grace_s, self._options.shutdown_timeout_s + TEARDOWN_S) if grace_s else 0.0)
        self._forget_generation()

    async def _answers(self, http: httpx.AsyncClient, model: str) -> None:
        """One token, or an embedding from a model that has none. Raises EngineStartError."""
        try:
            await readiness.one_token(http, model)
        except readiness.NoTokenError:
            if not await readiness.embeds(http, model):
                raise
            self._embeddings = True

    def _generation(self) -> Sequence[str]:
        wanted = vllm_turn_end.mended(self._files.path)
        if wanted is None:
            return ()
        folder = self._generation_folder
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
            (folder / vllm_turn_end.FILE).write_text(json.dumps(wanted), "utf-8")
        except OSError as error:
            raise EngineStartError(f"{folder} cannot be written: {error.strerror}") from error
        return ("--generation-config", str(folder))

    @property
    def _generation_folder(self) -> Path:
        return self._place.folder / f"{self._place.name}.generation"

    def _forget_generation(self) -> None:
        shutil.rmtree(self._generation_folder, ignore_errors=True)

    def _let_go(self) -> None:
        if self._held is not None:
            self._held.close()
            self._held = None


def flags_of_ours(name: str, host: str, port: int, shutdown_timeout_s: int) -> tuple[str, ...]:
    """What every vLLM is given, whatever the model and the machine."""
    return (
        *("--served-model-name", name),
        *("--host", host),
        *("--port", str(port)),
        *("--shutdown-timeout", str(shutdown_timeout_s)),
        "--disable-uvicorn-access-log",
    )


def _by_priority(argv: Sequence[str]) -> bool:
    """Whether the last word on it is that what is urgent goes first."""
    policy = ""
    for flag, after in itertools.zip_longest(argv, argv[1:], fillvalue=""):
        name, equals, value = flag.partition("=")
        if name == "--scheduling-policy":
            policy = value if equals else after
    return policy == "priority"


def hold_port(host: str) -> socket.socket:
    """A free port that a program which sets SO_REUSEADDR, as vLLM does, can bind and listen on all the same (Linux)."""
    held = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind((host, 0))
    return held


def _context(models: object) -> int | None:
    try:
        found = models["data"][0]["max_model_len"]  # type: ignore[index]  # whatever it is, it is looked at below
    except (LookupError, TypeError):
        return None
    return found if isinstance(found, int) and found > 0 else None
