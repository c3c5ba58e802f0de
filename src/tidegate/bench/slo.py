"""What an answer has to keep to be a good one: `ttft=500ms,tpot=50ms`. Pure."""

import re
from typing import Final

from tidegate.bench.samples import Sample
from tidegate.errors import SettingError

TERMS: Final = {"ttft": "time to the first token", "tpot": "time per output token", "latency": "the whole answer"}
_TERM: Final = re.compile(r"([a-z]+)=(\d+(?:\.\d+)?)(ms|s)")


class Slo:
    """Bounds in seconds, by term of `TERMS`."""

    def __init__(self, bounds: dict[str, float]) -> None:
        self.bounds = bounds

    def met(self, sample: Sample) -> bool:
        """Whether an answer was good: whole, and within every bound.

        One that was not streamed has no first token but its end, and one of a single token no time between two.
        """
        if sample.kind:
            return False
        bounds = self.bounds
        return (
            sample.end - sample.at <= bounds.get("latency", sample.end)
            and sample.ttft <= bounds.get("ttft", sample.end)
            and ((tpot := sample.tpot) is None or tpot <= bounds.get("tpot", tpot))
        )

    def __str__(self) -> str:
        return ", ".join(f"{name} within {bound * 1000:g} ms" for name, bound in self.bounds.items())

    @classmethod
    def parse(cls, written: str) -> "Slo":
        """Raises SettingError."""
        bounds: dict[str, float] = {}
        for term in written.replace(" ", "").split(","):
            found = _TERM.fullmatch(term)
            if found is None or found[1] not in TERMS or found[1] in bounds or not float(found[2]):
                raise SettingError(
                    "--slo",
                    f"{term!r} is not one of {', '.join(TERMS)} with a time, once: ttft=500ms,tpot=50ms,latency=3s",
                )
            bounds[found[1]] = float(found[2]) / (1000 if found[3] == "ms" else 1)
        return cls(bounds)
