"""The example file: every setting with its meaning and default, made from the docstrings of `sections`.

Settings that have a default stand behind `# `, and so do whole lists of what need not be there, so that the file as it is
changes nothing but the model and the pool it shows. Docstrings are read from the source here, once, rather than at every start.
"""

import ast
import inspect
import json
import textwrap
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from tidegate.config import classes, fields, fleets, reports, sections
from tidegate.config.classes import ClassSettings
from tidegate.config.section import Section
from tidegate.config.sections import PoolSettings, Settings

WIDTH = 110
SHOWN_LISTS = frozenset({"model", "pool"})
"""Lists whose first entry is not behind `# `."""
HEAD = """\
# Every setting of Tidegate, with its meaning and its default. "##" explains; behind "#" stands what would be so anyway,
# or, where there is no default, what could be there.
# Copy what you want to change; `tidegate init` writes a short file, `tidegate check-config` explains one.
#
# A flag beats an environment variable, a variable beats this file: TIDEGATE_GATEWAY__LISTEN is gateway.listen,
# TIDEGATE_MODEL is all of [[model]] as JSON. Secrets are never written here: only the files that hold them.
"""


def render_example() -> str:
    """The text of `tidegate.example.toml`."""
    parts = [HEAD]
    for name, field in fields.known(Settings).items():
        section = fields.section_of(field)
        if section is None:
            raise TypeError(f"{name} is no section")
        parts.append("\n".join(_table(name, section, in_list=fields.is_list(field))))
    return "\n".join(parts)


def meaning(section: type[BaseModel], name: str) -> str:
    """The docstring of a setting, with what is built in of it."""
    text = _docstrings()[section.__name__].get(name, "")
    built_in = classes.built_in(name) if section is ClassSettings and name != "name" else ""
    return f"{text} {built_in}".rstrip()


def _table(name: str, section: type[BaseModel], *, in_list: bool) -> Iterator[str]:
    yield from _comment(inspect.cleandoc(section.__doc__ or ""))
    behind = "# " if in_list and name not in SHOWN_LISTS else ""
    yield f"{behind}[[{name}]]" if in_list else f"[{name}]"
    below: list[tuple[str, type[BaseModel]]] = []
    for attribute, field in section.model_fields.items():
        key = field.alias or attribute
        inner = fields.section_of(field)
        if inner is not None:
            below.append((key, inner))
        elif section is not PoolSettings or key != "options":
            yield from _comment(meaning(section, attribute))
            line = _line(key, field)
            yield line if line.startswith("#") else f"{behind}{line}"
    yield ""
    for key, inner in below:
        yield from _table(f"{name}.{key}", inner, in_list=False)
    if section is PoolSettings:
        yield f"[{name}.options]"
        yield from _options(PoolSettings.OPTIONS)


def _options(kinds: Mapping[str, type[Section]]) -> Iterator[str]:
    for options in kinds.values():
        yield from _comment(inspect.cleandoc(options.__doc__ or ""))
        for key, field in options.model_fields.items():
            yield from _comment(meaning(options, key))
            yield _line(key, field)
        yield ""


def _line(key: str, field: FieldInfo) -> str:
    if field.is_required():
        return f"{key} = {_toml((field.examples or ['…'])[0])}"
    shown = field.default if field.default is not None else (field.examples or [""])[0]
    return f"# {key} = {_toml(shown)}" + ("  # no default" if field.default is None else "")


def _toml(value: Any) -> str:
    if isinstance(value, bool | int | float | str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, Path):
        return json.dumps(str(value), ensure_ascii=False)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key} = {_toml(inner)}" for key, inner in value.items()) + "}"
    return "[" + ", ".join(map(_toml, value)) + "]"


def _comment(text: str) -> Iterator[str]:
    for line in textwrap.wrap(" ".join(text.split()), WIDTH):
        yield f"## {line}"


@cache
def _docstrings() -> dict[str, dict[str, str]]:
    """By class and setting: the string that follows the setting in the source."""
    found: dict[str, dict[str, str]] = {}
    modules = (sections, classes, fleets, reports)
    nodes = (node for module in modules for node in ast.parse(inspect.getsource(module)).body)
    for node in nodes:
        if not isinstance(node, ast.ClassDef):
            continue
        docs = found.setdefault(node.name, {})
        for field, after in zip(node.body, node.body[1:], strict=False):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(after, ast.Expr):
                docs[field.target.id] = inspect.cleandoc(str(ast.literal_eval(after.value)))
    return found
