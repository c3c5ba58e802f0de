"""What a client asks for: the body read once, decoded only as far as routing needs, defaults put in.

What is forwarded is what was decided on: a body that two parsers could read in two ways is refused, and fields that
only an operator may set are taken out.
"""

from typing import Any, Final

import msgspec

from tidegate.errors import BadRequest
from tidegate.gateway.fleet import Fleet, ModelEntry, Replica
from tidegate.http import Request
from tidegate.openai import Fields, read_fields, typed, write_fields
from tidegate.types import Sampling

CHAT: Final = "/v1/chat/completions"
COMPLETIONS: Final = "/v1/completions"

_SUBJECT: Final = {CHAT: "messages", COMPLETIONS: "prompt", "/v1/embeddings": "input", "/v1/responses": "input"}
GENERATING: Final = frozenset((CHAT, COMPLETIONS))
FIRST_BYTES: Final = 512
"""Of each of the first messages, to know a conversation again."""
_TRUE: Final = msgspec.Raw(b"true")
_WITH_USAGE: Final = msgspec.Raw(b'{"include_usage":true}')
_HAS_USAGE: Final = frozenset((bytes(_WITH_USAGE), b'{"include_usage": true}'))


class Intake(msgspec.Struct):
    """A request as it was understood."""

    path: str
    model: ModelEntry
    fields: Fields
    body: bytes
    stream: bool
    """Whether the client wants a stream."""
    changed: bool = False
    """Whether `fields` say something else than `body`."""
    defaulted: bool = False
    """Whether the longest answer is the model's default, not the client's word."""
    wants_usage: bool = False
    """Whether the client asked for the usage at the end of its stream. The engine is asked for it in any case."""

    def with_fields(self, fields: Fields) -> "Intake":
        """The same request, asked with other fields."""
        return msgspec.structs.replace(self, fields=fields, changed=True)

    def body_for(self, replica: Replica, *, as_stream: bool) -> bytes:
        """The body this replica is sent; `as_stream` asks it for a stream whatever the client wants."""
        fields, private = self.fields, replica.dialect.private_fields
        rename = bool(replica.served_name) and replica.served_name != bytes(fields["model"])
        if not (self.changed or rename or as_stream) and private.isdisjoint(fields):
            return self.body
        fields = {name: raw for name, raw in fields.items() if name not in private}
        if rename:
            fields["model"] = msgspec.Raw(replica.served_name)
        if as_stream:
            fields["stream"] = _TRUE
            fields["stream_options"] = _WITH_USAGE
        return write_fields(fields)


def read_intake(path: str, body: bytes, fleet: Fleet) -> Intake:
    """Understand a request's body. Raises BadRequest or NotFound naming the field."""
    fields = read_fields(body)
    subject = _SUBJECT.get(path)
    if subject is not None:
        _check_subject(fields, subject)
    raw = fields.get("model")
    model = fleet.by_json.get(bytes(raw)) if raw is not None else None
    if model is None:
        name = typed(fields, "model", str, "a string")
        if not name:
            raise BadRequest("you must provide a model parameter", code="missing_required_parameter", param="model")
        model = fleet.model(name)
    raw = fields.get("stream")
    stream = False
    if raw is not None:
        told = bytes(raw)
        stream = told == b"true" or (told != b"false" and bool(typed(fields, "stream", bool, "true or false")))
    intake = Intake(path, model, fields, body, stream)
    if path in GENERATING:
        if stream:
            _ask_for_usage(intake)
        if "tools" in fields and typed(fields, "tools", list[Any], "a list") and not model.knows_tools:
            raise BadRequest(
                f"the model {model.name!r} cannot use tools: its chat template does not know them",
                code="unsupported_parameter",
                param="tools",
            )
        for limit in ANSWER_LIMITS:
            if limit in fields:
                _check_limit(fields, limit)
        if model.defaults is not None:
            intake.defaulted = model.defaults.max_tokens is not None and not any(
                _given(fields, one) for one in ANSWER_LIMITS
            )
            intake.changed |= _put_defaults(fields, model.defaults)
    return intake


def conversation(intake: Intake, request: Request) -> bytes:
    """What tells a conversation from others: the session or user that is named, or how it began; empty if nothing does."""
    session = request.headers.get(b"x-session-id")
    if session is not None:
        return session
    user = intake.fields.get("user")
    if user is not None:
        return bytes(user)
    messages = intake.fields.get("messages")
    if messages is None:
        return bytes(intake.fields.get("prompt", b""))[:FIRST_BYTES]
    try:
        first = msgspec.json.decode(messages, type=list[msgspec.Raw])[:2]
    except msgspec.DecodeError:
        return b""
    return b"".join(bytes(one)[:FIRST_BYTES] for one in first)


ANSWER_LIMITS: Final = ("max_completion_tokens", "max_tokens")
"""The fields by which a client says how long an answer may be."""


def _check_limit(fields: Fields, limit: str) -> None:
    wanted = typed(fields, limit, int, "a whole number")
    if wanted is not None and wanted < 1:
        raise BadRequest(f"{limit} has to be at least 1, not {wanted}", code="invalid_value", param=limit)


def _ask_for_usage(intake: Intake) -> None:
    """Have the engine tell what the stream cost, and remember whether the client wants to know."""
    raw = intake.fields.get("stream_options")
    if raw is not None and bytes(raw) in _HAS_USAGE:
        intake.wants_usage = True
        return
    told = typed(intake.fields, "stream_options", dict[str, Any], "an object")
    intake.wants_usage = bool(told and told.get("include_usage"))
    intake.fields["stream_options"] = (
        msgspec.Raw(msgspec.json.encode({**told, "include_usage": True})) if told else _WITH_USAGE
    )
    intake.changed = True


def _check_subject(fields: Fields, subject: str) -> None:
    raw = fields.get(subject)
    if raw is None:
        raise BadRequest(f"{subject} is missing", code="missing_required_parameter", param=subject)
    if subject == "messages":
        if memoryview(raw)[0] != ord("["):
            raise BadRequest("messages has to be a list", code="invalid_type", param=subject)
        if len(raw) < 16 and not typed(fields, subject, list, "a list"):
            raise BadRequest("messages is empty", code="invalid_value", param=subject)


def _put_defaults(fields: Fields, defaults: Sampling) -> bool:
    """Put in what the client left open; true where that was anything."""
    changed = False
    for name in Sampling.__struct_fields__:
        value = getattr(defaults, name)
        if value is None or _given(fields, name) or (name == "max_tokens" and _given(fields, "max_completion_tokens")):
            continue
        fields[name] = msgspec.Raw(msgspec.json.encode(value))
        changed = True
    return changed


def _given(fields: Fields, name: str) -> bool:
    """Whether the client decided; `null` leaves it open."""
    return name in fields and bytes(fields[name]) != b"null"
