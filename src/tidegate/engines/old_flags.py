"""Arguments for vLLM, gone through: what is not its own is answered with today's name, what is unknown with the nearest. Pure."""

import difflib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from tidegate.engines import old_names
from tidegate.engines.old_names import Old
from tidegate.engines.vllm_flags import PINNED, Flag, canonical, known, release
from tidegate.errors import SettingError

NUMBERS: Final = {
    "int": re.compile(r"-?\d+(\.\d+)?[kKmMgGtT]?|auto"),
    "float": re.compile(r"-?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?"),
}
VARIABLE: Final = re.compile(r"\$|\{\{|^<.*>$")
"""A value that a shell or a template puts in later."""
TRUTH: Final = frozenset({"true", "false", "1", "0", "yes", "no"})


class Verdict(StrEnum):
    """What is the matter with an argument."""

    GONE = "gone"
    """Of an older vLLM."""
    FOREIGN = "foreign"
    """Of another engine."""
    UNKNOWN = "unknown"
    DEPRECATED = "deprecated"
    """Works still."""
    WRONG = "wrong"
    """The flag exists, its value does not."""


@dataclass(frozen=True)
class Remark:
    """One argument that is not as vLLM has it."""

    position: int
    """In the arguments."""
    flag: str
    verdict: Verdict
    text: str
    advice: str


@dataclass(frozen=True)
class Argument:
    """A flag with its value, as vLLM reads them."""

    position: int
    name: str
    """As written, with hyphens."""
    flag: Flag | None
    """None for one it does not know."""
    values: tuple[str, ...]
    attached: bool
    """Whether the value stands behind an equals sign."""


def parse(arguments: Sequence[str]) -> Iterator[Argument]:
    """Each flag with what follows it. Words that belong to no flag, such as the model's name, are left out."""
    by_name = known().by_name()
    position = 0
    while position < len(arguments):
        word = arguments[position]
        start, position = position, position + 1
        if not word.startswith("-") or re.fullmatch(r"-\d.*|--?", word):
            continue
        written, equals, value = word.partition("=")
        name = canonical(written)
        if re.fullmatch(r"-O.+|-O", word):  # -O3, -O=3, -O 3
            position += word == "-O" and position < len(arguments)
            yield Argument(start, "-O", by_name["--optimization-level"], (), attached=True)
            continue
        flag = _find(name, by_name)
        if equals:
            yield Argument(start, name, flag, (value,), attached=True)
            continue
        end = position
        most = 1 if flag is None or flag.takes in {"one", "optional", "none"} else len(arguments)
        while end < len(arguments) and end - position < most and not _is_flag(arguments[end]):
            end += 1
        values = tuple(arguments[position:end])
        if flag is not None and flag.takes == "none":
            values = tuple(one for one in values if one.lower() in TRUTH)
        if flag is None or values:
            position = end if flag is not None else position
        yield Argument(start, name, flag, values, attached=False)


def check(arguments: Sequence[str], version: str = PINNED) -> tuple[Remark, ...]:
    """A remark for each argument that this vLLM would not take, or not for long.

    Of another version than the pinned one only what is known to be gone, or another engine's, is told.
    """
    found = [remark for one in parse(arguments) for remark in _judge(one)]
    if release(version) == release(PINNED):
        return tuple(found)
    if release(version) < release(PINNED):
        return tuple(remark for remark in found if remark.verdict is Verdict.FOREIGN)
    return tuple(remark for remark in found if remark.verdict in {Verdict.FOREIGN, Verdict.GONE})


def refuse(arguments: Sequence[str], setting: str, version: str = PINNED) -> None:
    """Raise SettingError, before anything starts, for the first argument that this vLLM would end at."""
    for remark in check(arguments, version):
        if remark.verdict is not Verdict.DEPRECATED:
            raise SettingError(setting, remark.text, hint=remark.advice)


def check_variable(name: str) -> Remark | None:
    """A remark for a variable of the environment that begins with VLLM_ and is none of the pinned vLLM's."""
    old = old_names.VARIABLES.get(name)
    if old is not None:
        return Remark(0, name, Verdict.GONE, f"{name} no longer exists: {old.why}", _instead(old))
    if not name.startswith("VLLM_") or name in known().environment:
        return None
    near = difflib.get_close_matches(name, known().environment, n=1)
    return Remark(
        0,
        name,
        Verdict.UNKNOWN,
        f"vLLM {PINNED} does not read {name}",
        f"did you mean {near[0]}?" if near else "leave it out",
    )


def check_command(words: Sequence[str]) -> Remark | None:
    """A remark for what follows `vllm` or `python -m`, where that is not how vLLM is started."""
    if not words:
        return None
    word = words[0]
    if word in old_names.MODULES:
        old = old_names.MODULES[word]
        verdict = Verdict.DEPRECATED if word == "vllm.entrypoints.openai.api_server" else Verdict.GONE
        return Remark(0, word, verdict, f"`python -m {word}`: {old.why}", "use `vllm serve MODEL`")
    if word in old_names.COMMANDS:
        old = old_names.COMMANDS[word]
        return Remark(
            0,
            word,
            Verdict.GONE,
            f"`vllm {word}`: {old.why}",
            f"use `vllm {old.today}`" if old.today else "leave it out",
        )
    if word.startswith(("-", "vllm.")) or word in known().commands or VARIABLE.search(word):
        return None
    near = difflib.get_close_matches(word, known().commands, n=1)
    return Remark(
        0,
        word,
        Verdict.UNKNOWN,
        f"vLLM has no command {word!r}",
        f"did you mean {near[0]!r}?" if near else "use `vllm serve MODEL`",
    )


def check_image(image: str) -> Remark | None:
    """A remark for a container image that does not exist."""
    path, _, _ = image.partition("@")
    name = path.rpartition(":")[0] if ":" in path.rpartition("/")[2] else path
    old = old_names.IMAGES.get("/".join(name.split("/")[-2:]))
    if old is None:
        return None
    return Remark(0, image, Verdict.GONE, f"{image}: {old.why}", f"use {old.today}:v{PINNED}")


def _judge(one: Argument) -> Iterator[Remark]:
    if one.flag is None:
        yield _unknown(one)
        return
    flag = one.flag
    if flag.deprecated:
        yield Remark(one.position, one.name, Verdict.DEPRECATED, f"{one.name} is deprecated", "leave it out")
    if one.name == "-O" or "." in one.name or "." in one.name.partition("=")[0]:
        return
    if flag.takes == "none":
        if one.values:
            off = one.values[0].lower() in {"false", "0", "no"}
            right = next((name for name in flag.names if name.startswith("--no-") is off and name.startswith("--")), "")
            yield Remark(
                one.position,
                one.name,
                Verdict.WRONG,
                f"{one.name} takes no value, and {one.values[0]!r} is given",
                f"write {right}" if right else "leave it out",
            )
    elif not one.values and flag.takes == "one":
        yield Remark(one.position, one.name, Verdict.WRONG, f"{one.name} has no value", "give it one, or leave it out")
    else:
        yield from _values(one, flag)


def _values(one: Argument, flag: Flag) -> Iterator[Remark]:
    for value in one.values:
        if VARIABLE.search(value):
            continue
        pattern = NUMBERS.get(flag.kind)
        if flag.choices and value not in flag.choices:
            near = difflib.get_close_matches(value, flag.choices, n=1)
            advice = f"did you mean {near[0]}? " if near else ""
            yield Remark(
                one.position,
                one.name,
                Verdict.WRONG,
                f"{one.name} has no value {value!r}",
                f"{advice}it takes {', '.join(flag.choices)}",
            )
        elif pattern is not None and not pattern.fullmatch(value):
            what = "a whole number" if flag.kind == "int" else "a number"
            yield Remark(one.position, one.name, Verdict.WRONG, f"{one.name} is {value!r}", f"it must be {what}")


def _unknown(one: Argument) -> Remark:
    old = old_names.FLAGS.get(one.name)
    if old is not None:
        what = f"is {old.whose}'s, not vLLM's" if old.whose else "no longer exists"
        verdict = Verdict.FOREIGN if old.whose else Verdict.GONE
        return Remark(one.position, one.name, verdict, f"{one.name} {what}: {old.why}", _instead(old))
    near = difflib.get_close_matches(one.name.partition(".")[0], known().by_name(), n=1, cutoff=0.7)
    return Remark(
        one.position,
        one.name,
        Verdict.UNKNOWN,
        f"vLLM {PINNED} has no flag {one.name}",
        f"did you mean {near[0]}?" if near else "leave it out; `vllm serve --help=all` lists them",
    )


def _instead(old: Old) -> str:
    return f"use {old.today}" if old.today else "leave it out"


def _find(name: str, by_name: dict[str, Flag]) -> Flag | None:
    """The flag of that name, or the only one that begins so, as argparse takes it."""
    head = name.partition(".")[0]
    if head in by_name:
        return by_name[head]
    if not head.startswith("--") or head in old_names.FLAGS:
        return None
    begun = {flag.name: flag for other, flag in by_name.items() if other.startswith(head)}
    return next(iter(begun.values())) if len(begun) == 1 else None


def _is_flag(word: str) -> bool:
    return bool(re.match(r"--?[A-Za-z]", word))
