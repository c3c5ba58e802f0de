"""The trace: when requests came and how long they were, for `tidegate bench run --trace`; nothing of who or what.

A line tells nothing that the access log does not, and can be handed to anybody: no tenant, user, key, address, model or
id. It is made where those of the access log are, and written as `line_file` says.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec

from tidegate.gateway.access_log import tenths_of_ms
from tidegate.gateway.line_file import LineFile, SharedFile
from tidegate.gateway.record import Ended
from tidegate.types import Outcome

LABELS_MAX: Final = 4096
GENERATING: Final = frozenset(("/v1/chat/completions", "/v1/completions"))
"""Only these can be asked again without what was asked."""


class TraceLog(LineFile):
    """The file of these lines; a new one each day."""

    def __init__(self, file: Path) -> None:
        super().__init__(SharedFile(file, daily=True), "the trace")
        self._labels: dict[tuple[str, bool, Outcome, int], tuple[str, str]] = {}

    def add(self, records: list[Ended]) -> None:
        """Have a line written for each of some requests; from one thread only."""
        if self.has_room(len(records)):
            self.queue.append(self.lines(records))

    def lines(self, records: Iterable[Ended]) -> bytes:
        """A line for each that asked for text. `at_s` is when the request was whole, in Unix time to a millisecond."""
        lines: list[str] = []
        for record in records:
            if record.path not in GENERATING:
                continue
            labels = self._labels.get((record.klass, record.stream, record.outcome, record.status))
            klass, end = labels or self._new_labels(record)
            at_ms = int((record.at_s - record.total_s) * 1000)
            read, said = record.prompt_tokens, record.completion_tokens
            lines.append(
                f'{{"at_s":{at_ms // 1000}.{at_ms % 1000:03d},{klass},"prompt_tokens":{"null" if read is None else read},'
                f'"output_tokens":{"null" if said is None else said},"total_ms":{tenths_of_ms(record.total_s)},{end}'
            )
        return "".join(lines).encode()

    def _new_labels(self, record: Ended) -> tuple[str, str]:
        klass, stream, outcome, status = record.klass, record.stream, record.outcome, record.status
        if len(self._labels) >= LABELS_MAX:
            self._labels.clear()
        named = msgspec.json.encode({"class": klass})[1:-1].decode()
        told = msgspec.json.encode({"stream": stream, "outcome": outcome, "status": status})[1:].decode()
        labels = self._labels[klass, stream, outcome, status] = (named, told + "\n")
        return labels
