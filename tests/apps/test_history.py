import asyncio

from hypothesis import given
from hypothesis import strategies as st

from tidegate.apps.chat.history import History, Turn, estimate_tokens


def count_with(asked=None):
    async def count(messages):
        if asked is not None:
            asked.append(len(messages))
        return sum(len(message["content"]) for message in messages)

    return count


def history_of(*lengths, system=""):
    return History(system, [Turn(str(index), "q" * length, "a" * length) for index, length in enumerate(lengths)])


async def test_all_turns_are_sent_while_they_fit():
    asked = []
    messages = await history_of(1, 2, system="s").fit("new", count_with(asked), 100)
    assert [message["content"] for message in messages] == ["s", "q", "a", "qq", "aa", "new"]
    assert len(asked) == 1


async def test_without_history_nothing_is_counted():
    asked = []
    assert await History().fit("new", count_with(asked), 1) == [{"role": "user", "content": "new"}]
    assert asked == []


async def test_a_question_larger_than_the_budget_goes_alone_with_the_system_text():
    history = history_of(5, 5, system="s")
    messages = await history.fit("n" * 1000, count_with(), 10)
    assert [message["role"] for message in messages] == ["system", "user"]
    assert history.turns == []


async def test_what_left_stays_away():
    history = history_of(10, 10, 10)
    await history.fit("n" * 10, count_with(), 55)
    assert [turn.id for turn in history.turns] == ["1", "2"]


@given(
    lengths=st.lists(st.integers(0, 50), max_size=40),
    question=st.integers(0, 200),
    system=st.integers(0, 20),
    budget=st.integers(0, 600),
)
def test_whole_turns_leave_oldest_first_and_no_more_than_must(lengths, question, system, budget):
    history = history_of(*lengths, system="s" * system)
    asked = []
    messages = asyncio.run(history.fit("n" * question, count_with(asked), budget))
    room = budget - question - system
    kept = 0
    while kept < len(lengths) and 2 * sum(lengths[len(lengths) - kept - 1 :]) <= room:
        kept += 1
    assert [turn.id for turn in history.turns] == [str(index) for index in range(len(lengths) - kept, len(lengths))]
    assert messages == history.messages("n" * question)
    assert len(asked) <= 8


def test_an_edited_question_forgets_its_old_answer_and_what_followed():
    history = history_of(1, 2, 3)
    history.rewind("1")
    assert [turn.id for turn in history.turns] == ["0"]
    history.rewind("unknown")
    assert [turn.id for turn in history.turns] == ["0"]


def test_the_estimate_counts_a_han_character_as_a_token():
    assert estimate_tokens([{"role": "user", "content": "你" * 300}]) >= 300
    assert estimate_tokens([{"role": "user", "content": "word " * 60}]) <= 110
