"""The text of prompts: Chinese questions to a customer service, or prose of so many tokens; no two begin alike. Pure.

How many characters make a token is the server's to say: `Sizes` is fitted to what it counted for two texts.
"""

from importlib import resources
from random import Random
from typing import Final

import msgspec

RING_CHARACTERS: Final = 40_000
MOST_NUMBER: Final = 10_000_000


def lines(name: str) -> list[str]:
    """Of a file that ships."""
    text = (resources.files("tidegate.bench") / "data" / name).read_text("utf-8")
    return [line for line in text.splitlines() if line]


class Sizes(msgspec.Struct, frozen=True):
    """Tokens of a text: what the chat's template takes, and so many a character."""

    fixed: float = 0.0
    per_character: float = 0.75
    """Where no server says it: a middle of what tokenizers make of Chinese."""

    def characters(self, tokens: int) -> int:
        """Of a text so that the whole prompt has so many tokens, at least one."""
        return max(1, round((tokens - self.fixed) / self.per_character))

    @classmethod
    def fit(cls, short: tuple[int, int], long: tuple[int, int]) -> "Sizes | None":
        """From two texts, each as (characters, prompt tokens counted); None where the counts make no sense."""
        per_character = (long[1] - short[1]) / (long[0] - short[0])
        if not 0.05 <= per_character <= 20:
            return None
        return cls(max(0.0, short[1] - per_character * short[0]), per_character)


class Prose:
    """Text of any length, a piece out of one long ring of shuffled sentences, behind a number of its own."""

    def __init__(self, random: Random) -> None:
        sentences = lines("prose_zh.txt")
        pieces: list[str] = []
        size = 0
        while size < RING_CHARACTERS:
            pieces.append(random.choice(sentences))
            size += len(pieces[-1])
        self._ring = "".join(pieces)

    def text(self, characters: int, random: Random) -> str:
        """Exactly so many characters."""
        text = f"第{random.randrange(MOST_NUMBER)}号："
        ring = self._ring
        at = random.randrange(len(ring))
        while len(text) < characters:
            text += ring[at : at + characters - len(text)]
            at = 0
        return text[:characters]


class Questions:
    """Short ones, as people send them to a customer service, each with a number of its own."""

    def __init__(self) -> None:
        self._questions = lines("service_zh.txt")

    def text(self, random: Random) -> str:
        return random.choice(self._questions).replace("{n}", str(random.randrange(MOST_NUMBER)))
