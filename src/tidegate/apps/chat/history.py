"""What of a conversation is sent with the next question.

Counted in the engine's own tokens. When it is more than the budget, whole turns leave, oldest first: a question is
never parted from its answer, and the system text and the newest question always stay.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TypedDict


class ChatMessage(TypedDict):
    """One message, as the API takes it."""

    role: str
    content: str


Count = Callable[[Sequence[ChatMessage]], Awaitable[int]]
"""Tokens that these messages take as a prompt."""


@dataclass(frozen=True)
class Turn:
    """A question and its answer. `id` is the question's, by which it can be asked again."""

    id: str
    question: str
    answer: str


@dataclass
class History:
    """One conversation. `system` may be empty."""

    system: str = ""
    turns: list[Turn] = field(default_factory=list)

    def add(self, turn: Turn) -> None:
        """Append a finished turn."""
        self.turns.append(turn)

    def rewind(self, id: str) -> None:  # noqa: A002 - the name of the field it is compared with
        """Forget the turn `id`, and all after it: that question is asked again in other words."""
        for index, turn in enumerate(self.turns):
            if turn.id == id:
                del self.turns[index:]
                return

    def messages(self, question: str, skip: int = 0) -> list[ChatMessage]:
        """The prompt for `question`, without the `skip` oldest turns."""
        messages: list[ChatMessage] = [{"role": "system", "content": self.system}] if self.system else []
        for turn in self.turns[skip:]:
            messages += [{"role": "user", "content": turn.question}, {"role": "assistant", "content": turn.answer}]
        return [*messages, {"role": "user", "content": question}]

    async def fit(self, question: str, count: Count, budget_tokens: int) -> list[ChatMessage]:
        """The prompt for `question` with as many of the newest turns as `budget_tokens` allows; the others are dropped.

        A question that is larger than the budget by itself goes alone. Asks `count` once where all fits, else about
        log2(turns) times.
        """
        if not self.turns or await count(self.messages(question)) <= budget_tokens:
            return self.messages(question)
        low, high = 1, len(self.turns)  # `high` skipped is allowed in any case
        while low < high:
            middle = (low + high) // 2
            if await count(self.messages(question, middle)) <= budget_tokens:
                high = middle
            else:
                low = middle + 1
        del self.turns[:high]
        return self.messages(question)


def estimate_tokens(messages: Sequence[ChatMessage]) -> int:
    """Tokens of `messages` where the engine cannot count: a token for three bytes of UTF-8 (a Han character, about
    three Latin letters: both on the safe side for common vocabularies), and four around each message.
    """
    return sum(4 + len(message["content"].encode()) // 3 + 1 for message in messages)
