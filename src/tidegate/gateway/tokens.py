"""/tokenize and /detokenize in vLLM's shape, whichever engine answers."""

import asyncio
from typing import Any

import msgspec

from tidegate.dialects import Call, Steps
from tidegate.errors import BadGateway, BadRequest, EngineError, NotSupported, RequestError, Unavailable
from tidegate.gateway.fleet import Fleet, ModelEntry, Replica
from tidegate.gateway.router import best, least_work_of_two
from tidegate.http.fetch import fetch
from tidegate.openai import read_fields, typed
from tidegate.types import ReplicaState

MAX_ANSWER_BYTES = 64 * 1024 * 1024
COUNT_TIMEOUT_S = 2.0
"""A client waits in the middle of its answer."""


async def ask(replica: Replica, call: Call) -> Any:
    """One JSON request to a replica, its answer decoded. Raises EngineError, BadRequest or BadGateway."""
    body = msgspec.json.encode(call.body)
    request = b"%bcontent-length: %d\r\n\r\n%b" % (replica.head(call.path), len(body), body)
    status, answer = await fetch(replica.endpoint, request, max_bytes=MAX_ANSWER_BYTES)
    if 400 <= status < 500:
        raise BadRequest(_message(answer) or f"the engine refused {call.path}", code="engine_refused")
    if status != 200:
        raise BadGateway(_message(answer) or f"the engine answered {call.path} with {status}", code="engine_failed")
    try:
        return msgspec.json.decode(answer)
    except msgspec.DecodeError:
        raise BadGateway(f"the engine's answer to {call.path} is not JSON", code="engine_failed") from None


def _message(answer: bytes) -> str:
    try:
        value = msgspec.json.decode(answer)
    except msgspec.DecodeError:
        return ""
    error = value.get("error", value) if isinstance(value, dict) else {}
    return str(error.get("message") or error.get("detail") or "") if isinstance(error, dict) else str(error)


def read_tokens_request(path: str, body: bytes, fleet: Fleet) -> tuple[ModelEntry, dict[str, Any]]:
    """The model and the request in vLLM's shape. Raises BadRequest or NotFound naming the field."""
    fields = read_fields(body)
    name = typed(fields, "model", str, "a string")
    if name is None and len(fleet.models) != 1:
        raise BadRequest("you must provide a model parameter", code="missing_required_parameter", param="model")
    model = next(iter(fleet.models.values())) if name is None else fleet.model(name)
    request: dict[str, Any] = {key: typed(fields, key, Any, "valid JSON") for key in fields}
    if path == "/detokenize":
        tokens = request.get("tokens")
        if not isinstance(tokens, list) or not all(type(token) is int and token >= 0 for token in tokens):
            raise BadRequest("tokens has to be a list of token numbers", code="invalid_type", param="tokens")
    elif request.get("messages") is not None:
        if not isinstance(request["messages"], list):
            raise BadRequest("messages has to be a list", code="invalid_type", param="messages")
    elif not isinstance(request.get("prompt"), str):
        raise BadRequest("either prompt, a string, or messages is needed", code="invalid_type", param="prompt")
    return model, request


async def answer_tokens(path: str, model: ModelEntry, request: dict[str, Any], random: float) -> dict[str, Any]:
    """The answer in vLLM's shape. Raises RequestError."""
    ready = [replica for replica in model.replicas if replica.view.state is ReplicaState.READY]
    able = [replica for replica in ready if replica.dialect.tokenize is not None]
    if ready and not able:
        raise NotSupported(
            f"the engines of {model.name!r} have no tokenizer that can be asked", code="tokenize_not_supported"
        )
    replica = least_work_of_two(best(able), lambda: random)
    if replica is None:
        raise Unavailable(f"no replica of {model.name!r} is ready", code="no_replica_ready", retry_after_s=2.0)
    steps_of = replica.dialect.tokenize if path == "/tokenize" else replica.dialect.detokenize
    if steps_of is None:
        raise NotSupported(f"the engines of {model.name!r} have no {path}", code="tokenize_not_supported")
    request = {name: value for name, value in request.items() if name not in replica.dialect.private_fields}
    if replica.view.served_name:
        request["model"] = replica.view.served_name
    try:
        answer = await _walk(steps_of(request), replica)
        if path == "/tokenize":
            answer.setdefault("max_model_len", replica.view.context_tokens or model.view.context_tokens)
    except EngineError as error:
        raise BadGateway(str(error), code="engine_failed") from None
    except (AttributeError, KeyError, TypeError):
        raise BadGateway(f"the engine's answer to {path} lacks what it should hold", code="engine_failed") from None
    return answer


async def count(replica: Replica, text: str) -> int | None:
    """How many tokens the replica's model makes of a text; None where it cannot be asked."""
    if replica.dialect.tokenize is None:
        return None
    request: dict[str, Any] = {"prompt": text, "add_special_tokens": False}
    if replica.view.served_name:
        request["model"] = replica.view.served_name
    try:
        async with asyncio.timeout(COUNT_TIMEOUT_S):
            found = (await _walk(replica.dialect.tokenize(request), replica)).get("count")
    except (EngineError, RequestError, TimeoutError, AttributeError, KeyError, TypeError):
        return None
    return found if isinstance(found, int) else None


async def _walk(steps: Steps, replica: Replica) -> dict[str, Any]:
    answer: Any = None
    while True:
        try:
            call = steps.send(answer)
        except StopIteration as end:
            result: dict[str, Any] = end.value
            return result
        answer = await ask(replica, call)
