"""What a search found, as it is kept: for one model, machine and engine version. Nothing takes it by itself."""

import re
from pathlib import Path

import msgspec

from tidegate.bench.comparing import Verdict
from tidegate.control.tuner.space import Value
from tidegate.control.tuner.trials import Key
from tidegate.errors import OperatorError
from tidegate.home import write_private


class Profile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Options of a pool that won; `tidegate report --profile` reads it, too."""

    name: str
    """Of the model."""
    key: Key
    date: str
    options: dict[str, Value]
    proof: dict[str, dict[str, Verdict]]
    """By figure, as multiples of what `up` ships (`up`) and of the engine's own (`defaults`)."""
    tokens_per_s: float | None
    """Of answers, under the load it was tuned on."""
    default_tokens_per_s: float | None
    """Likewise, with the engine's defaults."""


def profile_file(profiles: Path, model: str, machine: str, engine: str) -> Path:
    """Where the profile of a model on a machine and an engine version lies."""
    return profiles / f"{_slug(model)}--{_slug(machine)}--{_slug(engine)}.json"


def keep(file: Path, profile: Profile) -> None:
    """Write a profile. Raises OperatorError."""
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_private(file, msgspec.json.format(msgspec.json.encode(profile), indent=1) + b"\n")
    except OSError as error:
        raise OperatorError(f"{file} cannot be written: {error.strerror}") from None


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9.]+", "-", name.lower()).strip("-.") or "any"
