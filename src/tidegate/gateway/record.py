"""What is known of a request once it has ended: made once, in one place, and handed to whoever counts."""

from typing import Final

import msgspec

from tidegate.types import Outcome

STANDARD: Final = "standard"
"""The class of a request that asks for none."""


class Caller(msgspec.Struct, frozen=True):
    """Who asked."""

    tenant: str = "anonymous"
    user: str = ""
    key: str = ""
    """The key's name, never the key."""


ANONYMOUS = Caller()


class Ended(msgspec.Struct, frozen=True):
    """One request that has ended. Times in seconds from the moment the request was whole."""

    id: str
    at_s: float
    """Unix time of the end."""
    caller: Caller
    klass: str
    """The request's class."""
    model: str
    replica: str
    """Who answered last; empty if nobody did."""
    path: str
    status: int
    outcome: Outcome
    stream: bool
    queue_s: float
    first_s: float | None
    """To the first byte of the answer."""
    total_s: float
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    """As the engine counted them; None where it did not."""
    code: str = ""
    """The error's code, for those that failed."""
    moves: int = 0
    """How often the request went on to another replica."""
    client: str = ""
    """The client's address, where the access log is to have it."""
