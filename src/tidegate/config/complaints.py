"""Pydantic's complaints in words of the settings file: the setting's name, where it was written, what it must be."""

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from tidegate.config import fields
from tidegate.errors import SettingError

MAX_SHOWN_CHARS = 60
COMMAND_LINE = "the command line"
"""The origin of a flag."""

MUST_BE = {
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "finite_number": "must be a finite number",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "string_type": "must be text in quotes",
    "path_type": "must be a path in quotes",
    "tuple_type": "must be a list in brackets",
    "dict_type": "must be a table",
    "missing": "is missing",
    "string_too_short": "must not be empty",
    "string_pattern_mismatch": "must be lower-case letters, digits, - and _ (31 at most, no - or _ first)",
}
"""By pydantic's type of error (https://docs.pydantic.dev/latest/errors/validation_errors/)."""
BOUNDS = {
    "greater_than_equal": ("ge", "must be {} or more"),
    "greater_than": ("gt", "must be more than {}"),
    "less_than_equal": ("le", "must be {} or less"),
    "less_than": ("lt", "must be less than {}"),
}


def setting_error(
    error: ValidationError,
    model: type[BaseModel],
    origins: Mapping[str, str],
    where: tuple[str | int, ...] = (),
    others: tuple[str, ...] = (),
) -> SettingError:
    """The first complaint about `model`, which lies at `where` in the settings. `others` may know a setting it does not."""
    first, count = error.errors(include_url=False)[0], error.error_count()
    path = first["loc"]
    name = dotted((*where, *path))
    origin = origin_of(name, origins)
    place = f" (on {origin})" if origin == COMMAND_LINE else f" (in {origin})" if origin else ""
    more = f"; {count - 1} more such faults follow" if count > 1 else ""
    if first["type"] == "extra_forbidden":
        hint = nearest(str(path[-1]), _known(model, path[:-1]))
        if not hint and others:
            hint = f"is it for a pool with {' or '.join(others)}?"
        hint = hint or "tidegate.example.toml shows every setting"
        return SettingError(name, f"there is no such setting{place}{more}", hint=hint)
    got = "" if first["type"] in {"missing", "value_error", "string_too_short"} else f", not {_shown(first['input'])}"
    return SettingError(name, f"{_must_be(first, model, path)}{got}{place}{more}")


def dotted(path: Iterable[str | int]) -> str:
    """A setting's name; positions in lists count from 1, as a reader of the file counts."""
    return ".".join(str(part + 1) if isinstance(part, int) else part for part in path) or "settings"


def origin_of(name: str, origins: Mapping[str, str]) -> str:
    """Where the setting, or else the nearest table or list around or in it, was written."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        head = ".".join(parts[:length])
        if head in origins:
            return origins[head]
        inside = next((origin for known, origin in origins.items() if known.startswith(f"{head}.")), None)
        if inside is not None:
            return inside
    return ""


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint with the known name that looks most like `name`; empty if none does."""
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"did you mean {near[0]!r}?" if near else ""


def _must_be(details: ErrorDetails, model: type[BaseModel], path: tuple[str | int, ...]) -> str:
    kind, context = details["type"], details.get("ctx", {})
    if kind in BOUNDS:
        key, text = BOUNDS[kind]
        return text.format(context[key])
    if kind == "literal_error":
        return f"must be {context['expected']}"
    if kind == "tuple_type" and _is_table_list(model, path):
        return f"must be written as [[{path[-1]}]]"
    if kind in {"model_type", "model_attributes_type"}:
        name = dotted(part for part in path if isinstance(part, str))
        return f"must be a table, written as {f'[[{name}]]' if isinstance(path[-1], int) else f'[{name}]'}"
    if kind == "value_error":
        return details["msg"].removeprefix("Value error, ")
    return MUST_BE.get(kind) or details["msg"][:1].lower() + details["msg"][1:]


def _is_table_list(model: type[BaseModel], path: tuple[str | int, ...]) -> bool:
    field = fields.at(model, path)
    return field is not None and fields.section_of(field) is not None


def _known(model: type[BaseModel], path: tuple[str | int, ...]) -> list[str]:
    if not any(isinstance(part, str) for part in path):
        return list(fields.known(model))
    field = fields.at(model, path)
    section = fields.section_of(field) if field is not None else None
    return list(fields.known(section)) if section is not None else []


def _shown(value: Any) -> str:
    text = repr(value) if not isinstance(value, bool) else str(value).lower()
    return text if len(text) <= MAX_SHOWN_CHARS else f"{text[:MAX_SHOWN_CHARS]}…"
