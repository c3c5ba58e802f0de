"""What type a setting has, looked up by its path in the sections."""

import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from tidegate.config.sections import PoolSettings


def known(model: type[BaseModel]) -> dict[str, FieldInfo]:
    """The settings of a section by the names they have in the file."""
    return {field.alias or name: field for name, field in model.model_fields.items()}


def at(model: type[BaseModel], path: tuple[str | int, ...]) -> FieldInfo | None:
    """The field at `path` (list positions are numbers); None where there is none."""
    found: FieldInfo | None = None
    current: type[BaseModel] | None = model
    for part in path:
        if isinstance(part, int):
            continue
        found = known(current).get(part) if current is not None else None
        if found is None:
            return None
        current = section_of(found)
    return found


def paths(model: type[BaseModel], values: Mapping[str, Any]) -> Iterator[tuple[tuple[str | int, ...], FieldInfo]]:
    """Every known setting that `values` holds, with its field; unknown ones and wrong types are left to the check."""
    fields = known(model)
    for name, value in values.items():
        field = fields.get(name)
        if field is None:
            continue
        inner: type[BaseModel] | None = section_of(field)
        if model is PoolSettings and name == "options":
            inner = PoolSettings.OPTIONS.get(str(values.get("engine", "llamacpp")))
        if inner is None:
            yield (name,), field
        elif isinstance(value, Mapping):
            yield from (((name, *path), found) for path, found in paths(inner, value))
        elif isinstance(value, list):
            for position, item in enumerate(value):
                if isinstance(item, Mapping):
                    yield from (((name, position, *path), found) for path, found in paths(inner, item))


def section_of(field: FieldInfo) -> type[BaseModel] | None:
    """The section a field holds, alone or in a list; None for a plain value."""
    bare = _bare(field)
    candidates = (bare, *get_args(bare))
    return next((kind for kind in candidates if isinstance(kind, type) and issubclass(kind, BaseModel)), None)


def is_list(field: FieldInfo) -> bool:
    return get_origin(_bare(field)) is tuple


def is_compound(field: FieldInfo) -> bool:
    """Lists and tables."""
    return is_list(field) or get_origin(_bare(field)) is dict or section_of(field) is not None


def is_text(field: FieldInfo) -> bool:
    bare = _bare(field)
    return bare is str or bare is Path or get_origin(bare) is Literal


def is_path(field: FieldInfo) -> bool:
    return _bare(field) is Path


def is_bool(field: FieldInfo) -> bool:
    return _bare(field) is bool


def _bare(field: FieldInfo) -> Any:
    """The type without `| None`."""
    kind = field.annotation
    if get_origin(kind) in {Union, types.UnionType}:
        return next(part for part in get_args(kind) if part is not type(None))
    return kind
