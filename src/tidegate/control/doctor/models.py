"""The models of the data folder: whole, and small enough for this machine."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tidegate.config import LlamaCppOptions
from tidegate.control.doctor.findings import Finding, note, ok, problem, size
from tidegate.engines.llamacpp_fit import Machine, fit
from tidegate.errors import ModelError
from tidegate.gguf import GgufHeader, read_header
from tidegate.models import library


@dataclass(frozen=True)
class ModelFacts:
    """What is known of one model."""

    title: str
    size_bytes: int
    fault: str = ""
    advice: str = ""
    header: GgufHeader | None = None
    """Of a GGUF file that is whole."""


def gather(models: Path) -> tuple[ModelFacts, ...]:
    """Look at sizes, times and headers; files whose time changed are read through."""
    found = []
    for model in library.stored(models):
        title = f"{model.name} ({model.variant})"
        try:
            found.append(ModelFacts(title, model.size_bytes, header=library.check(model)))
        except ModelError as error:
            found.append(ModelFacts(title, model.size_bytes, str(error), error.hint))
    for path in library.by_hand(models):
        try:
            found.append(ModelFacts(path.name, path.stat().st_size, header=read_header(path)))
        except ModelError as error:
            found.append(ModelFacts(path.name, path.stat().st_size, str(error), f"take {path} away, or replace it"))
    return tuple(found)


def check(facts: Iterable[ModelFacts], machine: Machine, *, running: bool) -> Iterable[Finding]:
    """Findings; with `running` engines the memory that is available says nothing, as they hold theirs."""
    none = True
    for fact in facts:
        none = False
        if fact.fault:
            yield problem("model", fact.fault, fact.advice)
            continue
        yield ok("model", f"{fact.title} is whole, {size(fact.size_bytes)}")
        if fact.header is not None and not running:
            try:
                fit(fact.header, LlamaCppOptions(), machine, model=fact.title)
            except ModelError as refusal:
                yield problem("model", str(refusal), refusal.hint)
    if none:
        yield note(
            "model", "there is none in the data folder", "`tidegate up` gets one; so does `tidegate models pull NAME`"
        )
