"""Seeded mutation of byte strings, and cutting them as TCP may."""

import itertools
import random
from collections.abc import Sequence


class Mutator:
    """Makes inputs out of sound ones: some stay sound, some are joined, most are damaged in a few places."""

    def __init__(self, rng: random.Random, corpus: Sequence[bytes], tokens: Sequence[bytes]) -> None:
        self._rng, self._corpus, self._tokens = rng, corpus, tokens

    def input(self, *, most: int = 3) -> bytes:
        """One to `most` of the corpus in a row, and up to three kinds of damage."""
        rng = self._rng
        data = b"".join(rng.choice(self._corpus) for _ in range(rng.choice((1, 1, 1, *range(1, most + 1)))))
        for _ in range(rng.choice((0, 0, 1, 1, 1, 2, 2, 3))):
            data = self.damage(data)
        return data

    def damage(self, data: bytes) -> bytes:
        """One change."""
        rng = self._rng
        at = rng.randrange(len(data) + 1)
        to = min(len(data), at + rng.choice((1, 1, 2, 4, 8, 30)))
        kind = rng.randrange(9)
        if kind == 0:
            return data[:at] + bytes((rng.randrange(256),)) + data[to:]
        if kind == 1:
            return data[:at] + data[to:]
        if kind <= 4:
            return data[:at] + rng.choice(self._tokens) + data[at:]
        if kind == 5:
            return data[:to] + data[at:]
        if kind == 6:
            return data[:at] + rng.choice(self._tokens) + data[to:]
        if kind == 7:
            return self._at_a_line(data)
        other = rng.choice(self._corpus)
        return data[:at] + other[rng.randrange(len(other)) :]

    def _at_a_line(self, data: bytes) -> bytes:
        """Damage where parsers differ: at the end of a line."""
        rng = self._rng
        ends = [at for at in range(len(data)) if data.startswith(b"\r\n", at)]
        if not ends:
            return data
        at = rng.choice(ends)
        return (
            data[:at]
            + rng.choice((b"\n", b"\r", b"", b"\r\r\n", b" \r\n", b"\r\n ", b"\r\n\t", b"\x0b\r\n"))
            + data[at + 2 :]
        )

    def pieces(self, data: bytes) -> list[bytes]:
        """The same bytes, cut anywhere, after every byte, or, as engines do, after every head and event."""
        rng = self._rng
        kind = rng.randrange(10)
        if kind < 3 or len(data) < 2:
            return [data] if data else []
        if kind == 9 and len(data) < 600:
            return [data[at : at + 1] for at in range(len(data))]
        if kind >= 7:
            cuts = [at + 4 for at in range(len(data) - 4) if data.startswith((b"\n\n\r\n", b"\r\n\r\n"), at)]
            return [data[start:end] for start, end in itertools.pairwise((0, *cuts, len(data)))]
        cuts = sorted({rng.randrange(1, len(data)) for _ in range(1 if kind < 6 else rng.randrange(2, 9))})
        return [data[start:end] for start, end in itertools.pairwise((0, *cuts, len(data)))]
