"""What is asked: requests as bytes, drawn by a seed before they are sent. Pure."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from random import Random
from typing import Final

import msgspec

from tidegate.bench.lengths import Lengths
from tidegate.bench.prompts import Prose, Questions, Sizes
from tidegate.bench.trace import Arrival
from tidegate.errors import SettingError

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
_CLASS: Final = re.compile(r"([A-Za-z0-9_.-]{1,64})=(\d+(?:\.\d+)?)")
_PREFIX: Final = re.compile(r"(0?\.\d+|1|1\.0):([1-9]\d{0,5})(?:x([1-9]\d{0,4}))?")


class Planned(msgspec.Struct, frozen=True):
    """A request as it will be sent. `at_s` counts from the start; closed loops do not look at it."""

    at_s: float
    request: bytes
    klass: str
    stream: bool


class Prefix(msgspec.Struct, frozen=True):
    """A share of the prompts begins with one of `count` texts of so many tokens."""

    share: float
    tokens: int
    count: int = 1

    @classmethod
    def parse(cls, written: str) -> "Prefix":
        """`SHARE:TOKENS[xCOUNT]`. Raises SettingError."""
        found = _PREFIX.fullmatch(written)
        if found is None:
            raise SettingError(
                "--shared-prefix", f"{written!r} is not SHARE:TOKENS or SHARE:TOKENSxCOUNT, as in 0.5:400 or 0.8:400x10"
            )
        return cls(float(found[1]), int(found[2]), int(found[3] or 1))


def classes(written: Sequence[str]) -> dict[str, float]:
    """`NAME=SHARE` each, the shares to be added up. Raises SettingError."""
    found = {}
    for one in written:
        match = _CLASS.fullmatch(one)
        if match is None or not float(match[2]) or match[1] in found:
            raise SettingError("--class", f"{one!r} is not NAME=SHARE, once, as in interactive=0.8")
        found[match[1]] = float(match[2])
    return found


class Wire(msgspec.Struct, frozen=True):
    """How the server is spoken to."""

    host: bytes
    model: str
    path: str = CHAT
    stream: bool = True
    api_key: str = ""
    extra: Mapping[str, object] = {}
    """More fields of each request's body."""

    def request(
        self, text: str, output_tokens: int, *, prefix: str = "", klass: str = "", stream: bool = True
    ) -> bytes:
        """Head and body."""
        body: dict[str, object] = {"model": self.model}
        if self.path == CHAT:
            messages = [{"role": "user", "content": text}]
            body["messages"] = [{"role": "system", "content": prefix}, *messages] if prefix else messages
        else:
            body["prompt"] = prefix + text
        body["max_tokens"] = output_tokens
        if stream:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        content = msgspec.json.encode({**body, **self.extra} if self.extra else body)
        return b"POST %b HTTP/1.1\r\nhost: %b\r\ncontent-type: application/json\r\n%b%bcontent-length: %d\r\n\r\n%b" % (
            self.path.encode(),
            self.host,
            b"authorization: Bearer %b\r\n" % self.api_key.encode() if self.api_key else b"",
            b"x-request-type: %b\r\n" % klass.encode() if klass else b"",
            len(content),
            content,
        )


class Workload:
    """Draws requests. `prompt` is a number of tokens a request, or None for the questions that ship."""

    def __init__(
        self,
        wire: Wire,
        *,
        prompt: Lengths | None,
        output: Lengths,
        sizes: Sizes,
        classes: Mapping[str, float],
        prefix: Prefix | None,
        seed: int,
    ) -> None:
        self._wire, self._prompt, self._output, self._sizes = wire, prompt, output, sizes
        self._names, self._shares = list(classes), list(accumulate(classes.values()))
        self._random = Random(seed)  # noqa: S311 - a load is no secret
        self._prose, self._questions = Prose(self._random), Questions()
        self._prefix, self._prefixes = prefix, [""]
        if prefix is not None:
            characters = max(1, round(prefix.tokens / sizes.per_character))
            self._prefixes = [self._prose.text(characters, self._random) for _ in range(prefix.count)]

    def planned(self, times: Iterable[float]) -> Iterator[Planned]:
        """A request at each of the times."""
        return (self._draw(Arrival(at)) for at in times)

    def replayed(self, arrivals: Iterable[Arrival]) -> Iterator[Planned]:
        """A request for each arrival of a trace; what it does not say is drawn."""
        return map(self._draw, arrivals)

    def _draw(self, arrival: Arrival) -> Planned:
        random = self._random
        klass = arrival.klass
        if not klass and self._names:
            klass = random.choices(self._names, cum_weights=self._shares)[0]
        prefix, prefix_tokens = "", 0
        if self._prefix is not None and random.random() < self._prefix.share:
            prefix, prefix_tokens = random.choice(self._prefixes), self._prefix.tokens
        tokens = arrival.prompt_tokens or (self._prompt(random) if self._prompt is not None else None)
        if tokens is None:
            text = self._questions.text(random)
        else:
            text = self._prose.text(self._sizes.characters(tokens - prefix_tokens), random)
        output = arrival.output_tokens or self._output(random)
        stream = self._wire.stream if arrival.stream is None else arrival.stream
        return Planned(
            arrival.at_s, self._wire.request(text, output, prefix=prefix, klass=klass, stream=stream), klass, stream
        )
