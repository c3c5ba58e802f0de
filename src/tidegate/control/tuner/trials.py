"""What is known of a trial, as it is kept, and the journal in which it is kept."""

import os
from pathlib import Path
from typing import Literal

import msgspec

from tidegate.control.tuner.space import Value
from tidegate.errors import OperatorError

Outcome = Literal["measured", "stopped early", "out of memory", "failed"]


class Key(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What trials belong to: only what has the same key can be set beside each other."""

    model: str
    """Digest of weights, quantisation and template."""
    machine: str
    engine: str
    """With its version."""
    workload: str
    load: str
    slo: str
    space: str
    """Settings that are searched, with their values."""


class Trial(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One setting of the engine that was tried."""

    settings: dict[str, Value]
    outcome: Outcome
    random: bool
    """Whether it was drawn without a look at the others: these alone are what random search would have had."""
    goodput_per_s: float | None = None
    """Answers within the SLO each second; None where nothing was measured."""
    queries_per_s: float | None = None
    cause: str = ""
    """Why nothing was measured, or why it was not measured to the end."""


class Journal:
    """Trials in a file of JSON lines, the key first. Each is on the disk before the next one begins, so that a search that
    is killed at any point goes on where it was; a last line that was torn counts as not written.
    """

    def __init__(self, file: Path, key: Key) -> None:
        """Raises OperatorError where the file cannot be read, or belongs to something else."""
        self.file, self.key = file, key
        self.trials: list[Trial] = []
        try:
            content = file.read_bytes() if file.exists() else b""
            whole = content[: content.rfind(b"\n") + 1]
            lines = whole.splitlines()
            if lines and msgspec.json.decode(lines[0], type=Key) != key:
                raise OperatorError(f"{file} holds trials of another search", hint="move it away to begin anew")
            self.trials = [msgspec.json.decode(line, type=Trial) for line in lines[1:]]
            if len(whole) < len(content):
                os.truncate(file, len(whole))
            if not lines:
                self._append(msgspec.json.encode(key))
        except (OSError, msgspec.DecodeError) as error:
            raise OperatorError(f"{file} cannot be used: {error}", hint="move it away to begin anew") from None

    def add(self, trial: Trial) -> None:
        """Keep a trial. Raises OperatorError where the disk does not take it."""
        try:
            self._append(msgspec.json.encode(trial))
        except OSError as error:
            raise OperatorError(f"{self.file} cannot be written: {error.strerror}") from None
        self.trials.append(trial)

    def _append(self, line: bytes) -> None:
        self.file.parent.mkdir(parents=True, exist_ok=True)
        with self.file.open("ab") as stream:
            stream.write(line + b"\n")
            stream.flush()
            os.fsync(stream.fileno())
