"""Commands that start vLLM, found in a line, a shell script, a unit, a Dockerfile, or a compose file, with their lines. Pure.

Shell is not run: variables stay as they are written. YAML is read by its nodes, so that every word has a line.
"""

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import yaml

MODULE_NAMES: Final = ("vllm.", "vllm")
YAML_NAMES: Final = frozenset({".yml", ".yaml"})
IMAGE: Final = re.compile(r"(^|/)vllm(-openai|-server|-cpu[\w-]*)?([:@]|$)|vllm/vllm")
ASSIGNMENT: Final = re.compile(r"[A-Za-z_]\w*=")
TALKERS: Final = frozenset(["echo", "printf", "pip", "pip3", "conda", "grep", "pgrep", "pkill", "which", "cat", "cd"])
"""Commands that only speak of vLLM."""
DOCKER_SWITCH: Final = re.compile(
    r"-[ditP]+|--(detach|rm|interactive|tty|init|privileged|publish-all|read-only|no-healthcheck|oom-kill-disable|quiet)"
)
"""Options of `docker run` that take no value."""


@dataclass(frozen=True)
class Word:
    """A word, and the line it stands on (from 1)."""

    text: str
    line: int


@dataclass(frozen=True)
class Found:
    """One way in which vLLM is started there."""

    line: int
    command: tuple[Word, ...] = ()
    """What follows `vllm`, or `python -m`: the subcommand or module; empty where an image has it built in."""
    arguments: tuple[Word, ...] = ()
    image: Word | None = None
    variables: tuple[Word, ...] = ()
    """NAME=VALUE."""
    container: Mapping[str, Word] = field(default_factory=dict)
    """Keys of a container that matter (ipc, shm_size, restart …), with their values; empty outside of containers."""
    in_container: bool = False


def find(text: str, *, name: str = "") -> tuple[Found, ...]:
    """Every start of vLLM in a file. Raises ValueError, with the line, for YAML that cannot be read."""
    suffix = name[name.rfind(".") :].lower() if "." in name else ""
    if suffix in YAML_NAMES or (not suffix and re.search(r"^services:\s*$", text, re.MULTILINE)):
        return tuple(_in_yaml(text))
    return tuple(_in_shell(text))


def _in_yaml(text: str) -> Iterator[Found]:
    try:
        documents = list(yaml.compose_all(text, Loader=yaml.SafeLoader))
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 0
        raise ValueError(f"line {line}: {error.problem or 'it is no YAML'}") from None
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from None
    for document in documents:
        seen: set[int] = set()
        if document is not None:
            yield from _in_node(document, seen)


def _in_node(node: yaml.Node, seen: set[int]) -> Iterator[Found]:
    """Every mapping that looks like a container, at whatever depth: compose's services, Kubernetes' containers."""
    if id(node) in seen:  # an anchor that holds itself
        return
    seen.add(id(node))
    if isinstance(node, yaml.MappingNode):
        fields = {key.value: value for key, value in node.value if isinstance(key, yaml.ScalarNode)}
        found = _container(node, fields)
        if found is not None:
            yield found
        else:
            for value in fields.values():
                yield from _in_node(value, seen)
    elif isinstance(node, yaml.SequenceNode):
        for value in node.value:
            yield from _in_node(value, seen)


def _container(node: yaml.MappingNode, fields: Mapping[str, yaml.Node]) -> Found | None:
    image = _scalar(fields.get("image"))
    words = [*_words(fields.get("entrypoint")), *_words(fields.get("command")), *_words(fields.get("args"))]
    ours = image is not None and IMAGE.search(image.text) is not None
    start = _start(words)
    if not ours and start is None:
        return None
    if "image" not in fields and "build" not in fields and "command" not in fields:
        return None
    command, arguments = start or ((), tuple(words))
    container = {key: found for key in fields if (found := _scalar(fields[key])) is not None}
    for key in ("deploy", "healthcheck", "volumes", "resources", "gpus", "runtime"):
        if key in fields and key not in container:
            container[key] = Word(key, _line(fields[key]))
    return Found(
        line=image.line if image else _line(node),
        command=command,
        arguments=arguments,
        image=image,
        variables=tuple(_environment(fields.get("environment") or fields.get("env"))),
        container=container,
        in_container=True,
    )


def _environment(node: yaml.Node | None) -> Iterator[Word]:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            yield Word(f"{key.value}={value.value if isinstance(value, yaml.ScalarNode) else ''}", _line(key))
    elif isinstance(node, yaml.SequenceNode):
        for one in node.value:
            if isinstance(one, yaml.ScalarNode):
                yield Word(one.value, _line(one))
            elif isinstance(one, yaml.MappingNode):  # Kubernetes: name, value
                told = {key.value: value for key, value in one.value if isinstance(key, yaml.ScalarNode)}
                name, value = _scalar(told.get("name")), _scalar(told.get("value"))
                if name is not None:
                    yield Word(f"{name.text}={value.text if value else ''}", name.line)


def _words(node: yaml.Node | None) -> list[Word]:
    if isinstance(node, yaml.SequenceNode):
        parts = [one for one in node.value if isinstance(one, yaml.ScalarNode)]
        # `sh -c "vllm serve …"` holds a whole command in one word
        return [
            word
            for one in parts
            for word in (_split(one) if " vllm" in f" {one.value}" else [Word(one.value, _line(one))])
        ]
    return _split(node) if isinstance(node, yaml.ScalarNode) else []


def _split(node: yaml.ScalarNode) -> list[Word]:
    first = _line(node)
    if node.style in {"|", ">"}:  # folded lines are one in the value: each word's own line is in the file's text
        lines = node.start_mark.buffer.splitlines()[first : node.end_mark.line]
        return [word for words in _logical_lines("\n".join(lines), first + 1) for word in words]
    return [word for words in _logical_lines(node.value, first) for word in words]


def _scalar(node: yaml.Node | None) -> Word | None:
    return Word(node.value, _line(node)) if isinstance(node, yaml.ScalarNode) else None


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


def _in_shell(text: str) -> Iterator[Found]:
    exported: list[Word] = []
    for words in _logical_lines(text, 1):
        for part in _commands(words):
            if part and part[0].text in {"export", "ENV"}:
                exported += [word for word in part[1:] if ASSIGNMENT.match(word.text)]
                continue
            found = _shell_command(part, exported)
            if found is not None:
                yield found


def _shell_command(words: Sequence[Word], exported: Sequence[Word]) -> Found | None:
    count = 0
    while count < len(words) and ASSIGNMENT.match(words[count].text):
        count += 1
    own, rest = list(words[:count]), list(words[count:])
    if rest and re.fullmatch(r"(.*/)?(docker|podman|nerdctl)", rest[0].text):
        return _docker(rest, own)
    start = _start(rest)
    if start is None:
        return None
    command, arguments = start
    return Found(words[0].line, command, arguments, variables=(*exported, *own))


def _docker(words: Sequence[Word], own: Sequence[Word]) -> Found | None:
    at = next((at for at, word in enumerate(words) if word.text in {"run", "create"}), None)
    if at is None:
        return None
    container, variables, at = {}, list(own), at + 1
    while at < len(words) and words[at].text.startswith("-"):
        word = words[at]
        name, equals, value = word.text.partition("=")
        at += 1
        if not equals and not DOCKER_SWITCH.fullmatch(name) and at < len(words):
            value, at = words[at].text, at + 1
        if name in {"-e", "--env"}:
            variables.append(Word(value, word.line))
        else:
            container[name.lstrip("-").replace("-", "_")] = Word(value, word.line)
    if at >= len(words):
        return None
    image, rest = words[at], words[at + 1 :]
    start = _start(rest)
    if start is None and not IMAGE.search(image.text):
        return None
    command, arguments = start or ((), tuple(rest))
    return Found(words[0].line, command, arguments, image, tuple(variables), container=container, in_container=True)


def _start(words: Sequence[Word]) -> tuple[tuple[Word, ...], tuple[Word, ...]] | None:
    """What follows `vllm` or `python -m vllm…`: the subcommand or module, and the arguments."""
    if words and words[0].text.rpartition("/")[2] in TALKERS:
        return None
    for at, word in enumerate(words):
        if re.fullmatch(r"(.*/)?vllm", word.text) and at + 1 < len(words):
            return (words[at + 1],), tuple(words[at + 2 :])
        if word.text == "-m" and at + 1 < len(words) and words[at + 1].text.startswith(MODULE_NAMES):
            return (words[at + 1],), tuple(words[at + 2 :])
    return None


def _commands(words: Sequence[Word]) -> Iterator[list[Word]]:
    """The commands of a line, which `&&`, `;`, `|` and `&` stand between."""
    part: list[Word] = []
    for word in words:
        if word.text in {"&&", "||", ";", "|", "&"}:
            yield part
            part = []
        else:
            part.append(word)
    yield part


def _logical_lines(text: str, first: int) -> Iterator[list[Word]]:
    """Words of each command, which backslashes, open quotes, JSON lists and unit files may spread over lines."""
    words: list[Word] = []
    held, held_at = "", first
    for number, raw in enumerate(text.splitlines(), first):
        line = raw.rstrip()
        if not held:
            held_at = number
            line = re.sub(r"^\s*Exec\w+=-?|^\s*(CMD|ENTRYPOINT|RUN)\s+(?=[^=\s])", "", line)
            line = re.sub(r"^\s*Environment=", "export ", line)
        more = line.endswith("\\")
        held += (line.removesuffix("\\") if more else line) + "\n"
        try:
            parts = _tokens(held)
        except ValueError:  # a quotation is still open
            continue
        words += [Word(part, held_at) for part in parts]
        held = ""
        if not more:
            yield words
            words = []
    if held:
        words += [Word(part, held_at) for part in held.replace('"', " ").replace("'", " ").split()]
    yield words


def _tokens(line: str) -> list[str]:
    stripped = line.strip()
    if stripped.startswith("[") and stripped.endswith("]"):
        try:
            listed = json.loads(stripped)
        except ValueError:
            listed = None
        if isinstance(listed, list):
            return [str(one) for one in listed]
    # `;` and `&` at the end of a word end the command too
    return [part for word in shlex.split(line, comments=True) for part in _ended(word)]


def _ended(word: str) -> list[str]:
    bare = word.rstrip(";")
    return [*([bare] if bare else []), *([";"] if bare != word else [])]
