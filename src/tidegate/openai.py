"""The wire format of OpenAI's API: request fields, error bodies, the model list, events of a stream.

Source: https://platform.openai.com/docs/api-reference (fields and errors), and the HTML standard, section 9.2 (events).
"""

import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from tidegate.errors import BadRequest, RequestError, UpstreamClosedError
from tidegate.types import ModelView

JSON: Final = (b"content-type", b"application/json")
DONE: Final = b"data: [DONE]\n\n"

Fields = dict[str, msgspec.Raw]
"""A JSON object, its values undecoded."""

_decode_object = msgspec.json.Decoder(Fields).decode
_LEAST_FIELD: Final = len('"":0,')
"""Bytes of a field beside its key: a body with less than that to spare hides none."""
_KEY: Final = re.compile(rb'[ \t\r\n]*"((?:[^"\\]|\\.)*)"[ \t\r\n]*:[ \t\r\n]*', re.DOTALL)
_AFTER_VALUE: Final = re.compile(rb"[ \t\r\n]*([,}])")


def read_fields(body: bytes) -> Fields:
    """The fields of a JSON object. Raises BadRequest for what is none, and for a key that comes twice.

    Of two equal keys one parser takes the first and another the last: what was decided on would not be what an
    engine does. So they are refused, whatever the key.
    """
    try:
        fields = _decode_object(body)
        body.decode()
    except UnicodeDecodeError as error:
        raise BadRequest(f"the body is not UTF-8 at byte {error.start}", code="invalid_json") from None
    except msgspec.DecodeError as error:
        raise BadRequest(f"the body is not a JSON object: {error}", code="invalid_json") from None
    except RecursionError:
        raise BadRequest("the body is nested too deeply", code="invalid_json") from None
    surplus = len(body) - (1 + 4 * len(fields) + sum(map(len, fields)) + sum(map(len, fields.values())))
    if surplus and surplus >= min(map(len, fields), default=0) + _LEAST_FIELD and not _is_spaced(body, fields):
        double = _double_key(body, fields)
        if double is not None:
            raise BadRequest(f"the key {double!r} is in the body twice", code="duplicate_key", param=double)
    return fields


def _is_spaced(body: bytes, fields: Fields) -> bool:
    """Whether `body` is these fields and nothing else, as Python's json writes them: then no key is in it twice."""
    pieces = [b'"%b": %b' % (key.encode(), raw) for key, raw in fields.items()]
    return body == b"{%b}" % b", ".join(pieces)


def _double_key(body: bytes, fields: Fields) -> str | None:
    """The first key that comes twice at the top level of `body`, which is known to be valid JSON."""
    seen: set[str] = set()
    at = body.index(b"{") + 1
    while match := _KEY.match(body, at):
        text = match[1]
        key: str = msgspec.json.decode(b'"%b"' % text) if b"\\" in text else text.decode()
        value = bytes(fields[key])
        after = _AFTER_VALUE.match(body, match.end() + len(value))
        if key in seen or after is None or not body.startswith(value, match.end()):
            return key
        seen.add(key)
        at = after.end()
    return None


def write_fields(fields: Mapping[str, object]) -> bytes:
    """The JSON object of these fields, raw or not."""
    return msgspec.json.encode(fields)


def typed(fields: Fields, name: str, kind: Any, what: str) -> Any:
    """Field `name` as `kind`; None where it is missing or null. Raises BadRequest saying it has to be `what`."""
    raw = fields.get(name)
    if raw is None or bytes(raw) == b"null":
        return None
    try:
        return msgspec.json.decode(raw, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise BadRequest(f"{name} has to be {what}", code="invalid_type", param=name) from None


def error_object(error: RequestError) -> dict[str, object]:
    """The value of `error` in an error body."""
    return {"message": error.message, "type": error.type, "param": error.param, "code": error.code}


def error_body(error: RequestError) -> bytes:
    """An error answer's body."""
    return msgspec.json.encode({"error": error_object(error)})


def error_event(error: RequestError) -> bytes:
    """The event that ends a stream which cannot go on; no `[DONE]` follows it."""
    return b"data: " + error_body(error) + b"\n\n"


def model_object(model: ModelView, context_tokens: int | None, created: int) -> dict[str, object]:
    """One entry of the model list, and the answer to /v1/models/NAME. `created` is in Unix seconds.

    Serving names, never paths; `max_model_len` is vLLM's name for the context.
    """
    entry: dict[str, object] = {"id": model.name, "object": "model", "created": created, "owned_by": "tidegate"}
    if model.aliases:
        entry["aliases"] = list(model.aliases)
    if context_tokens:
        entry["max_model_len"] = context_tokens
    return entry


_EVENT_END: Final = re.compile(rb"\r\n\r\n|\n\n|\r\r(?!\n)|\n\r\n")


def whole_events(data: bytes) -> int:
    """How many leading bytes of a stream are whole events."""
    if b"\r" not in data:
        return data.rfind(b"\n\n") + 2 if b"\n\n" in data else 0
    end = 0
    for match in _EVENT_END.finditer(data):
        end = match.end()
    return end


def event_data(event: bytes) -> bytes:
    """The data of one event, without its field names; empty for comments."""
    lines = event.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
    return b"\n".join(line[5:].removeprefix(b" ") for line in lines if line.startswith(b"data:"))


def split_events(data: bytes) -> list[bytes]:
    """The data of each event in `data`, which ends with a whole one; comments are dropped."""
    if b"\r" in data:
        data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    return [found for event in data.split(b"\n\n") if event and (found := event_data(event))]


def split_raw(data: bytes) -> list[bytes]:
    """The events in `data`, which ends with a whole one, each byte for byte."""
    ends = [match.end() for match in _EVENT_END.finditer(data)]
    return [data[start:end] for start, end in zip([0, *ends], ends, strict=False)]


_decode_event = msgspec.json.Decoder(dict[str, Any]).decode


def decode_event(data: bytes) -> dict[str, Any]:
    """The JSON object of an event. Raises UpstreamClosedError: an engine that sends something else has lost its mind."""
    try:
        return _decode_event(data)
    except msgspec.DecodeError as error:
        raise UpstreamClosedError(f"an event is not a JSON object: {error}") from None


class Usage(msgspec.Struct, frozen=True):
    """What an answer cost, as the engine counted."""

    prompt_tokens: int = 0
    completion_tokens: int = 0


def usage_of(fields: Mapping[str, Any]) -> Usage | None:
    """The usage that an event or an answer tells; None where it tells none."""
    told = fields.get("usage")
    if not isinstance(told, dict):
        return None
    prompt, completion = told.get("prompt_tokens"), told.get("completion_tokens")
    return Usage(prompt if isinstance(prompt, int) else 0, completion if isinstance(completion, int) else 0)


class _Answer(msgspec.Struct):
    usage: Usage | None = None


_decode_answer = msgspec.json.Decoder(_Answer).decode


def usage_in(body: bytes) -> Usage | None:
    """The usage in a JSON answer; None where there is none, or where the answer is something else."""
    try:
        return _decode_answer(body).usage
    except msgspec.DecodeError:
        return None
