import itertools

from hypothesis import given
from hypothesis import strategies as st

from tidegate.engines import fake_text

WHOLE = "".join(map(fake_text.word, range(200)))


@given(st.integers(0, len(WHOLE) - 20), st.text(st.characters(exclude_characters="词"), max_size=20))
def test_a_text_is_continued_from_any_character_without_a_gap_or_a_repeat(cut, before):
    """What was said and what follows are the same text wherever it was cut, whatever prompt stands before it."""
    begun = WHOLE[:cut]
    following = "".join(itertools.islice(fake_text.words_after(before + begun), 210))
    assert (begun + following).startswith(WHOLE)


def test_a_text_of_another_kind_is_followed_by_the_beginning():
    assert list(itertools.islice(fake_text.words_after("Hello"), 2)) == ["词0 ", "词1 "]


@given(st.text(alphabet=st.characters(codec="utf-8"), max_size=60))
def test_tokens_turn_back_into_their_text(text):
    assert fake_text.decode(fake_text.encode(text)) == text
    assert len(fake_text.encode(text)) == fake_text.count(text)


def test_a_word_of_the_answer_is_one_token():
    assert fake_text.encode("词0 词17 a") == [2_000_000, 2_000_017, ord("a")]
