"""An engine that runs already, given by its URL: found out about, never started or stopped."""

import hashlib
from pathlib import PurePath
from typing import Any

import httpx
import msgspec

from tidegate.config import ExternalOptions
from tidegate.engines import readiness
from tidegate.engines.base import Child, EngineFacts
from tidegate.errors import EngineStartError, SettingError
from tidegate.types import DialectName

NOT_THERE = frozenset((400, 404, 405, 501))
"""How engines answer a request for what they do not do."""


class ExternalEngine:
    """An `Engine` that is somebody else's. Its dialect is known once it was ready, where the settings do not say."""

    def __init__(self, url: str, options: ExternalOptions) -> None:
        self.dialect = DialectName.OPENAI if options.dialect == "auto" else DialectName(options.dialect)
        self._url = url.rstrip("/").removesuffix("/v1")
        self._options = options
        self._api_key = ""

    @property
    def url(self) -> str:
        return self._url

    @property
    def api_key(self) -> str:
        return self._api_key

    @property
    def child(self) -> Child | None:
        return None

    async def start(self) -> None:
        """Read the key it wants. Raises SettingError."""
        file = self._options.api_key_file
        if file is not None:
            try:
                self._api_key = file.read_text(encoding="utf-8").strip()
            except OSError as error:
                raise SettingError("pool.options.api_key_file", f"{file} cannot be read: {error.strerror}") from None

    async def ready(self) -> EngineFacts:
        """Ask it what it is, and for one token. Raises EngineStartError that names the URL and what happened."""
        try:
            async with readiness.client(self._url, self._api_key) as http:
                return await self._find_out(http)
        except (httpx.TransportError, httpx.InvalidURL) as error:
            what = str(error) or type(error).__name__
            raise EngineStartError(f"the engine at {self._url} cannot be reached: {what}") from error

    async def stop(self, grace_s: float) -> None:
        """It is not ours to end."""
        del grace_s

    async def _find_out(self, http: httpx.AsyncClient) -> EngineFacts:
        model = await self._model(http)
        props = await readiness.get_json(http, "/props")
        if self._options.dialect == "auto":
            self.dialect = await _dialect(http, model, props)
        if self.dialect is not DialectName.LLAMACPP or not isinstance(props, dict):
            props = {}
        served = self._options.served_name or str(model.get("id", ""))
        embeddings = await readiness.embeds(http, served)
        try:
            await readiness.one_token(http, served)
        except readiness.NoTokenError as error:
            # An engine of embeddings alone has no such path; one that fails is not ready, whatever else it can do.
            if not embeddings or not set(error.statuses) <= NOT_THERE:
                raise
        vllm = self.dialect is DialectName.VLLM
        return EngineFacts(
            priorities=vllm and await readiness.takes_priorities(http, served),
            slots=_whole(props.get("total_slots")) or self._options.slots,
            context_tokens=_whole((props.get("default_generation_settings") or {}).get("n_ctx"))
            or _whole(model.get("max_model_len")),
            started_s=0.0,
            embeddings=embeddings,
            served_name=served,
            version=_version(self.dialect, served, model, props),
            tools=readiness.tools_of(props),
        )

    async def _model(self, http: httpx.AsyncClient) -> dict[str, Any]:
        """The entry of /v1/models that is served; an empty one where the engine does not list its models."""
        answer = await http.get("/v1/models")
        if answer.status_code in {401, 403}:
            raise EngineStartError(
                f"the engine at {self._url} wants a key ({answer.status_code}): name it in pool.options.api_key_file"
            )
        try:
            listed = msgspec.json.decode(answer.content)["data"]
            models = [model for model in listed if isinstance(model, dict)]
        except (msgspec.DecodeError, LookupError, TypeError):
            if answer.status_code == httpx.codes.NOT_FOUND and self._options.served_name:
                return {}
            raise EngineStartError(
                f"what answers at {self._url} is no OpenAI API: /v1/models gave {answer.status_code} "
                f"{answer.headers.get('content-type', '')}"
            ) from None
        wanted = self._options.served_name
        found = [model for model in models if not wanted or model.get("id") == wanted or wanted in _aliases(model)]
        if not found:
            names = ", ".join(str(model.get("id")) for model in models) or "none"
            raise EngineStartError(f"the engine at {self._url} has no model {wanted!r}; it has: {names}")
        return found[0]


async def _dialect(http: httpx.AsyncClient, model: dict[str, Any], props: Any) -> DialectName:
    """What kind of engine it is, by what only one kind has."""
    metrics = await http.get("/metrics")
    text = metrics.text if metrics.status_code == httpx.codes.OK else ""
    if "vllm:" in text:
        return DialectName.VLLM
    if "llamacpp:" in text or (isinstance(props, dict) and "total_slots" in props):
        return DialectName.LLAMACPP
    owner = {"vllm": DialectName.VLLM, "llamacpp": DialectName.LLAMACPP}.get(str(model.get("owned_by")))
    return owner or DialectName.OPENAI


def _version(dialect: DialectName, served: str, model: dict[str, Any], props: dict[str, Any]) -> str:
    """A digest of what an engine reports of weights, quantisation and template; equal for engines that report the same."""
    reported = {
        "dialect": dialect.value,
        "model": served,
        "root": str(model.get("root", "")).rsplit("/", 1)[-1],
        "weights": {key: model["meta"].get(key) for key in ("n_params", "size", "n_vocab", "ftype")}
        if isinstance(model.get("meta"), dict)
        else {},
        "quantisation": props.get("model_ftype", ""),
        "template": props.get("chat_template", ""),
    }
    return hashlib.sha256(msgspec.json.encode(reported, order="deterministic")).hexdigest()


def _aliases(model: dict[str, Any]) -> list[Any]:
    aliases = model.get("aliases")
    return aliases if isinstance(aliases, list) else []


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and value > 0 else None


def serving_name(served: str) -> str:
    """What clients call a model whose engine calls it `served`: llama.cpp's own name for it is the file's path."""
    return PurePath(served).stem if served.startswith("/") else served
