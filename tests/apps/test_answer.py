import pytest

from tidegate.apps.chat.answer import answer
from tidegate.apps.chat.trouble import AGAIN, CHINESE, ENGLISH, Kind, TroubleError, retry_after, words_of


class Recorder:
    def __init__(self):
        self.said = []

    async def begin(self):
        self.said.append("begin")

    async def add(self, piece):
        self.said.append(piece)

    async def wait(self, trouble, seconds):
        self.said.append((trouble.kind, seconds))


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now

    async def sleep(self, seconds):
        self.now += seconds


def source_of(*scripts):
    """Each script is one call's: pieces, and at last perhaps an error."""
    left = list(scripts)

    async def source(messages):
        for piece in left.pop(0) if len(left) > 1 else left[0]:
            if isinstance(piece, Exception):
                raise piece
            yield piece

    return source


async def ask(source, patience_s=60.0):
    screen, clock = Recorder(), Clock()
    await answer(source, [], screen, patience_s=patience_s, clock=clock, sleep=clock.sleep)
    return screen.said, clock.now


async def test_pieces_are_shown_as_they_come_without_blank_lines_before():
    assert await ask(source_of(["\n", "\n Hi", " there\n"])) == (["begin", "Hi", " there\n"], 0.0)


async def test_it_counts_down_as_long_as_the_gateway_says_and_asks_again():
    said, took = await ask(source_of([TroubleError(Kind.LOADING, retry_after_s=3)], ["Hi"]))
    assert said == [("loading", 3), ("loading", 2), ("loading", 1), "begin", "Hi"]
    assert took == 3


async def test_it_asks_at_most_once_a_second():
    said, took = await ask(source_of(*[[TroubleError(Kind.LOADING, retry_after_s=0)]] * 5, ["Hi"]))
    assert said == [*[("loading", 1)] * 5, "begin", "Hi"]
    assert took == 5


async def test_an_answer_that_breaks_begins_anew():
    said, _ = await ask(source_of(["Hi", TroubleError(Kind.BROKEN)], ["Hi", " you"]))
    assert said == ["begin", "Hi", ("broken", 1), "begin", "Hi", " you"]


async def test_it_gives_up_when_its_patience_is_at_an_end():
    screen, clock = Recorder(), Clock()
    with pytest.raises(TroubleError, match="away"):
        await answer(source_of([TroubleError(Kind.AWAY)]), [], screen, clock=clock, sleep=clock.sleep)
    assert 55 <= clock.now <= 60


async def test_it_does_not_begin_to_wait_longer_than_its_patience():
    screen, clock = Recorder(), Clock()
    with pytest.raises(TroubleError):
        await answer(
            source_of([TroubleError(Kind.BUSY, retry_after_s=600)]), [], screen, clock=clock, sleep=clock.sleep
        )
    assert (screen.said, clock.now) == ([], 0.0)


@pytest.mark.parametrize("kind", sorted(set(Kind) - AGAIN))
async def test_what_does_not_pass_by_itself_is_told_at_once(kind):
    with pytest.raises(TroubleError, match=kind):
        await ask(source_of([TroubleError(kind)]))


@pytest.mark.parametrize("pieces", [[], ["", "\n"]])
async def test_an_empty_answer_is_told(pieces):
    with pytest.raises(TroubleError, match="empty"):
        await ask(source_of(pieces))


@pytest.mark.parametrize("words", [ENGLISH, CHINESE])
def test_both_languages_have_a_sentence_for_every_trouble(words):
    assert set(words.end) == set(Kind)
    assert set(words.wait) == AGAIN
    for kind in Kind:
        assert "{" not in words.given_up(TroubleError(kind, retry_after_s=3, detail="{x}")).replace("{x}", "")


def test_chinese_is_spoken_to_chinese_browsers():
    assert [words_of(language) is CHINESE for language in ("zh-CN", "zh", "zh-TW", "en-US", "fr")] == [True] * 3 + [
        False
    ] * 2


def test_only_seconds_are_taken_from_retry_after():
    assert [retry_after(value) for value in ("3", "0.5", "", "-1", "inf", "nan", "Wed, 21 Oct 2026 07:28:00 GMT")] == [
        3.0,
        0.5,
        *[None] * 5,
    ]
