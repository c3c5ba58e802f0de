"""What an operator has set by hand in what runs: limits of replicas, replicas that are drained, how many a pool has.

Kept in `run/hand.json`, so that a control that takes over from a killed one holds on to it. It goes with the rest of `run/`
when everything ends in order: what is started anew begins as the settings say.
"""

from collections.abc import Callable, Collection
from typing import Self

import msgspec

from tidegate import logs
from tidegate.home import Home, write_private

FILE = "hand.json"


class Kept(msgspec.Struct, frozen=True):
    """The file."""

    limits: dict[str, int] = {}
    """Most requests at once, by replica."""
    drained: tuple[str, ...] = ()
    replicas: dict[str, int] = {}
    """How many, by pool, in place of what the settings say."""


class Hand:
    """What is set by hand. `changed` is told of every change."""

    def __init__(self, home: Home, kept: Kept, changed: Callable[[], None]) -> None:
        self._path, self._changed = home.run / FILE, changed
        self.limits = dict(kept.limits)
        self.drained = set(kept.drained)
        self.replicas = dict(kept.replicas)

    @classmethod
    def load(cls, home: Home, changed: Callable[[], None]) -> Self:
        """What an earlier control left; nothing where the file is missing, or is no such file."""
        try:
            kept = msgspec.json.decode((home.run / FILE).read_bytes(), type=Kept)
        except (OSError, msgspec.DecodeError):
            kept = Kept()
        return cls(home, kept, changed)

    def set_limit(self, replica: str, sequences: int | None) -> None:
        """None leaves it to the limiter again."""
        if self.limits.get(replica) != sequences:
            if sequences is None:
                del self.limits[replica]
            else:
                self.limits[replica] = sequences
            self._keep()

    def drain(self, replica: str, *, drained: bool) -> None:
        """A drained replica finishes what it has and gets nothing new."""
        if (replica in self.drained) != drained:
            self.drained ^= {replica}
            self._keep()

    def set_replicas(self, pool: str, replicas: int | None) -> None:
        """None leaves it to the settings again."""
        if self.replicas.get(pool) != replicas:
            if replicas is None:
                del self.replicas[pool]
            else:
                self.replicas[pool] = replicas
            self._keep()

    def forget_others(self, replicas: Collection[str]) -> None:
        """Of replicas that there are no more nothing is kept: another one of that name begins as the settings say."""
        limits = {name: limit for name, limit in self.limits.items() if name in replicas}
        drained = self.drained & set(replicas)
        if (limits, drained) != (self.limits, self.drained):
            self.limits, self.drained = limits, drained
            self._keep()

    def is_drained(self, replica: str) -> bool:
        return replica in self.drained

    def _keep(self) -> None:
        kept = Kept(dict(sorted(self.limits.items())), tuple(sorted(self.drained)), dict(sorted(self.replicas.items())))
        try:
            write_private(self._path, msgspec.json.encode(kept))
        except OSError as error:  # it holds all the same, for as long as this control lives
            logs.get().error("data folder cannot be written", file=str(self._path), cause=error.strerror)
        self._changed()
