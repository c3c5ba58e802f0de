"""Limits and drains that an operator set by hand."""

import pytest

from tidegate.control.hand import FILE, Hand


@pytest.fixture
def told():
    return []


@pytest.fixture
def hand(home, told):
    return Hand.load(home, lambda: told.append(1))


def test_what_was_set_is_known_to_the_next_control(hand, home):
    hand.set_limit("p-0", 3)
    hand.drain("p-1", drained=True)
    again = Hand.load(home, lambda: None)
    assert (again.limits, again.is_drained("p-1"), again.is_drained("p-0")) == ({"p-0": 3}, True, False)
    assert (home.run / FILE).stat().st_mode & 0o777 == 0o600


def test_taking_back_leaves_nothing_and_is_no_fault_where_nothing_was_set(hand, home):
    hand.set_limit("p-0", None)
    hand.drain("p-0", drained=False)
    hand.set_limit("p-0", 3)
    hand.set_limit("p-0", None)
    hand.drain("p-0", drained=True)
    hand.drain("p-0", drained=False)
    again = Hand.load(home, lambda: None)
    assert (again.limits, again.drained) == ({}, set())


def test_only_a_change_is_told(hand, told):
    for _ in range(2):
        hand.set_limit("p-0", 3)
        hand.drain("p-0", drained=True)
    assert len(told) == 2


def test_what_belongs_to_replicas_that_are_gone_is_forgotten(hand, told):
    hand.set_limit("p-0", 3)
    hand.set_limit("p-9", 3)
    hand.drain("p-9", drained=True)
    hand.forget_others({"p-0"})
    hand.forget_others({"p-0"})
    assert (hand.limits, hand.drained, len(told)) == ({"p-0": 3}, set(), 4)


@pytest.mark.parametrize("text", ["", "{", '{"limits": {"p-0": "x"}}', "[]"])
def test_a_file_that_is_none_is_as_if_it_were_not_there(home, text):
    (home.run / FILE).write_text(text)
    assert Hand.load(home, lambda: None).limits == {}


def test_a_disk_that_takes_nothing_is_logged_and_what_was_set_holds(hand, home, told):
    home.run.rename(home.run.with_name("away"))
    hand.set_limit("p-0", 3)
    assert (hand.limits, told) == ({"p-0": 3}, [1])
    home.run.with_name("away").rename(home.run)
