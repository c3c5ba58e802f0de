"""What is known of one request when it is over. Times in seconds from the start of its run."""


class Sample:
    """One request, from the moment it was to be sent. `kind` is empty for a whole answer, else says what went wrong."""

    __slots__ = ("at", "end", "events", "first", "kind", "klass", "last", "output_tokens", "prompt_tokens", "sent")

    def __init__(self, at: float, klass: str = "") -> None:
        self.at = self.sent = at
        self.first = self.last = self.end = 0.0
        self.events = self.prompt_tokens = self.output_tokens = 0
        self.klass, self.kind = klass, ""

    @property
    def latency(self) -> float:
        return self.end - self.at

    @property
    def ttft(self) -> float:
        """Time to the first token; of an answer in one piece, to its end."""
        return (self.first or self.end) - self.at

    @property
    def tpot(self) -> float | None:
        """Time per output token after the first; None of answers in one piece, and of one token."""
        if not self.first or self.output_tokens < 2 or self.events < 2:
            return None
        return (self.last - self.first) / (self.output_tokens - 1)
