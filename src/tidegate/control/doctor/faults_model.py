"""Folders of safetensors, as vLLM loads them: whole, of an architecture it knows, with a tokenizer and a template."""

import difflib
import json
import re
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tidegate.control.doctor.findings import Finding, note, ok, problem, size
from tidegate.engines import model_facts
from tidegate.engines.model_facts import FIRST_VERSION, INDEX, RENAMED
from tidegate.engines.vllm_flags import PINNED, known, release
from tidegate.errors import ModelError

GIT_POINTER: Final = b"version https://git-lfs"
MOST_HEADER_BYTES: Final = 100 << 20
"""As the format has it."""
TOKENIZERS: Final = frozenset(["tokenizer.json", "tokenizer.model", "spiece.model", "vocab.json", "tekken.json"])
TEMPLATES: Final = frozenset(["chat_template.jinja", "chat_template.json"])
SHARD: Final = re.compile(r"-(\d{5})-of-(\d{5})\.safetensors$")
PULL: Final = "pull it again (`tidegate models pull NAME --format safetensors`)"


@dataclass(frozen=True)
class WeightFile:
    """One file of weights."""

    name: str
    size_bytes: int
    fault: str = ""
    pointer: bool = False
    """Whether Git left a pointer in its place."""


@dataclass(frozen=True)
class FolderFacts:
    """What is known of a folder."""

    path: Path
    config: Mapping[str, Any] = field(default_factory=dict)
    config_fault: str = ""
    weights: tuple[WeightFile, ...] = ()
    indexed: frozenset[str] = frozenset()
    """Files that the index names."""
    index_fault: str = ""
    names: frozenset[str] = frozenset()
    """Every file of the folder."""
    has_template: bool = False


def gather(folder: Path) -> FolderFacts:
    """Look at sizes and headers; weights are not read."""
    config, config_fault = _json(folder / "config.json")
    index, index_fault = _json(folder / INDEX)
    weight_map = index.get("weight_map")
    try:
        names = frozenset(path.name for path in folder.iterdir())
    except OSError as error:
        return FolderFacts(folder, config_fault=error.strerror or str(error))
    tokenizer, _ = _json(folder / "tokenizer_config.json")
    return FolderFacts(
        path=folder,
        config=config,
        config_fault=config_fault if "config.json" in names else "it is not there",
        weights=tuple(_weights(folder / name) for name in sorted(names) if name.endswith(".safetensors")),
        indexed=frozenset(map(str, weight_map.values())) if isinstance(weight_map, dict) else frozenset(),
        index_fault=index_fault if INDEX in names else "",
        names=names,
        has_template=bool(tokenizer.get("chat_template")) or bool(TEMPLATES & names),
    )


def check(facts: FolderFacts, *, compute: tuple[int, int] | None = None, version: str = PINNED) -> Iterator[Finding]:
    """Findings, for a vLLM of that version and a GPU of that compute capability, where there is one."""
    found = [*_config(facts, version), *_files(facts), *_words(facts), *_precision(facts, compute)]
    yield from found
    if not found:
        whole = sum(file.size_bytes for file in facts.weights)
        yield ok("model", f"{facts.path.name} is whole for vLLM, {size(whole)} of weights")


def _config(facts: FolderFacts, version: str) -> Iterator[Finding]:
    name = facts.path.name
    if facts.config_fault:
        gguf = any(one.endswith(".gguf") for one in facts.names)
        advice = "GGUF files are for llama.cpp; vLLM no longer loads them" if gguf else PULL
        yield problem("model", f"{name}: config.json cannot be read: {facts.config_fault}", advice)
        return
    architecture = str((facts.config.get("architectures") or ["none"])[0])
    if architecture in RENAMED:
        right = RENAMED[architecture]
        yield problem(
            "model",
            f"{name}: config.json names its architecture {architecture}, an older spelling that vLLM does not know",
            f"write {right} there (llama.cpp knows both); plans of Tidegate override it",
        )
        return
    first = FIRST_VERSION.get(architecture)
    if first is not None and release(version) < first:
        told = ".".join(map(str, first))
        yield problem(
            "model", f"{name}: vLLM {version} is older than {architecture}, which {told} is the first to know",
            "`tidegate engines install vllm`",
        )  # fmt: skip
    elif release(version) == release(PINNED) and architecture not in known().architectures:
        yield _unknown(name, architecture, version, brings_code="auto_map" in facts.config)
    try:
        model_facts.from_config(facts.config, name=name)
    except ModelError as error:
        yield problem("model", str(error), error.hint or PULL)


def _unknown(name: str, architecture: str, version: str, *, brings_code: bool) -> Finding:
    if architecture in known().dropped:
        last = known().dropped[architecture]
        return problem(
            "model", f"{name}: vLLM dropped {architecture} after {last}", "take a newer model, or that version"
        )
    if brings_code:
        return problem(
            "model",
            f"{name}: vLLM {version} does not know {architecture}; the model brings code of its own",
            'read that code; then args = ["--trust-remote-code"] runs it',
        )
    near = difflib.get_close_matches(architecture, known().architectures, n=1)
    return problem(
        "model",
        f"{name}: vLLM {version} does not know the architecture {architecture}",
        f"is {near[0]} meant? Else it needs a newer vLLM" if near else "it needs a newer vLLM, or another engine",
    )


def _files(facts: FolderFacts) -> Iterator[Finding]:
    name = facts.path.name
    for file in facts.weights:
        if file.pointer:
            yield problem(
                "model", f"{name}: {file.name} is Git's pointer, not the weights", f"`git lfs pull` there, or {PULL}"
            )
        elif file.fault:
            yield problem("model", f"{name}: {file.name} {file.fault}", PULL)
    if facts.index_fault:
        yield problem("model", f"{name}: {INDEX} cannot be read: {facts.index_fault}", PULL)
    here = {file.name for file in facts.weights}
    missing = sorted(facts.indexed - here) or sorted(_missing_shards(here))
    if missing:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        why = "the index names" if facts.indexed - here else "the other files' names count"
        yield problem("model", f"{name}: {why} {', '.join(missing[:3])}{more}, not there", PULL)
    if not facts.weights and not missing and not facts.config_fault:
        pickled = any(one.endswith((".bin", ".pt", ".pth")) for one in facts.names)
        yield problem(
            "model",
            f"{name}: there are no safetensors" + (", only pickled weights, which can run code" if pickled else ""),
            PULL,
        )


def _missing_shards(names: Iterable[str]) -> Iterator[str]:
    for name in tuple(names):
        found = SHARD.search(name)
        if found and int(found[2]) < 10_000:
            stem = name[: found.start()]
            wanted = (f"{stem}-{number:05}-of-{found[2]}.safetensors" for number in range(1, int(found[2]) + 1))
            yield from (one for one in wanted if one not in names)
            return


def _words(facts: FolderFacts) -> Iterator[Finding]:
    name = facts.path.name
    if facts.config_fault:
        return
    if not TOKENIZERS & facts.names:
        yield problem(
            "model",
            f"{name}: there is no tokenizer",
            "copy tokenizer.json or tokenizer.model, and tokenizer_config.json, there",
        )
    elif not facts.has_template:
        yield note(
            "model",
            f"{name}: there is no chat template: chats are refused, completions work",
            "add chat_template.jinja, if it is a chat model",
        )


def _precision(facts: FolderFacts, compute: tuple[int, int] | None) -> Iterator[Finding]:
    if facts.config_fault:
        return
    told = str(facts.config.get("dtype") or facts.config.get("torch_dtype") or "").removeprefix("torch.")
    name = facts.path.name
    if told and told not in model_facts.DTYPE_BYTES:
        yield note("model", f"{name}: config.json has the dtype {told!r}, which is none", "write bfloat16 there")
    elif told == "float32":
        yield note(
            "model",
            f"{name}: weights are float32, twice as large as they need be",
            "vLLM serves them in 16 bit all the same",
        )
    if told == "bfloat16" and compute is not None and compute < (8, 0):
        yield note(
            "model",
            f"{name}: weights are bfloat16, which a GPU of compute capability {compute[0]}.{compute[1]} does not have",
            "plans of Tidegate serve them in float16; by hand --dtype float16",
        )


def _weights(file: Path) -> WeightFile:
    """Whether a file is as long as its header says (https://github.com/huggingface/safetensors#format)."""
    try:
        length = file.stat().st_size
        with file.open("rb") as opened:
            first = opened.read(64)
            if first.startswith(GIT_POINTER):
                return WeightFile(file.name, length, pointer=True)
            if len(first) < 8:
                return WeightFile(file.name, length, "is empty, or nearly")
            (header_bytes,) = struct.unpack("<Q", first[:8])
            if header_bytes > min(MOST_HEADER_BYTES, length):
                return WeightFile(file.name, length, "is no safetensors file, or half of one")
            opened.seek(8)
            header = json.loads(opened.read(header_bytes))
            ends = [one["data_offsets"][1] for key, one in header.items() if key != "__metadata__"]
    except OSError as error:
        return WeightFile(file.name, 0, f"cannot be read: {error.strerror}")
    except (ValueError, LookupError, TypeError, AttributeError):
        return WeightFile(file.name, length, "has a damaged header")
    wanted = 8 + header_bytes + max(ends, default=0)
    if wanted != length:
        return WeightFile(file.name, length, f"is {size(length)} long and should be {size(wanted)}: half of it arrived")
    return WeightFile(file.name, length)


def _json(file: Path) -> tuple[dict[str, Any], str]:
    try:
        found = json.loads(file.read_text("utf-8"))
    except FileNotFoundError:
        return {}, "it is not there"
    except OSError as error:
        return {}, error.strerror or str(error)
    except (ValueError, RecursionError) as error:
        return {}, f"it is no JSON ({error})"
    return (found, "") if isinstance(found, dict) else ({}, "it is no JSON object")
