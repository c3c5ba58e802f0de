"""How many replicas a pool should have follows the waiting, with bounds, patience and one step at a time."""

import dataclasses
import itertools

import pytest
import structlog

from tidegate.errors import OperatorError
from tidegate.fleet.scaling import REFUSED_PAUSE_S, Bounds, Memory, Scaler, Seen, decide

BOUNDS = Bounds(least=1, most=4, wait_s=2.0, grow_after_s=10.0, shrink_below=0.5, shrink_after_s=300.0)


def play(seen, seconds, memory=None, *, bounds=BOUNDS, start=0):
    """Decisions of as many looks as seconds, each of the same fleet; the first change, and when."""
    memory = memory or Memory()
    for second in range(start, start + seconds):
        decision = decide(seen, memory, bounds, float(second))
        memory = decision.memory
        if decision.replicas != seen.replicas:
            return decision, second
    return decision, None


def test_a_wait_that_lasts_asks_for_one_more():
    decision, second = play(Seen(replicas=1, starting=0, wait_s=3.0, in_flight=8, room=8), 60)
    assert (decision.replicas, second) == (2, 10)
    assert decision.reason == "requests wait 3.0 s"


def test_a_short_wait_asks_for_nothing():
    decision, second = play(Seen(replicas=1, starting=0, wait_s=1.9, in_flight=8, room=8), 600)
    assert (decision.replicas, second) == (1, None)


def test_a_wait_that_comes_and_goes_asks_for_nothing():
    memory = Memory()
    for second in range(200):
        wait = 5.0 if second % 10 < 8 else 0.0
        decision = decide(Seen(1, 0, wait_s=wait, in_flight=8, room=8), memory, BOUNDS, float(second))
        memory = decision.memory
        assert decision.replicas == 1


def test_refused_requests_count_as_a_wait():
    memory = Memory()
    for second in range(20):
        decision = decide(Seen(1, 0, refused=second, in_flight=8, room=8), memory, BOUNDS, float(second))
        memory = decision.memory
        if decision.replicas == 2:
            break
    assert (second, decision.reason) == (11, "requests were refused")


def test_what_was_refused_before_the_first_look_counts_for_nothing():
    _, second = play(Seen(1, 0, refused=1000, in_flight=8, room=8), 100)
    assert second is None


def test_while_one_is_starting_nothing_changes():
    for seen in (
        Seen(2, starting=1, wait_s=30.0, in_flight=16, room=8),
        Seen(2, starting=1, in_flight=0, room=8),
    ):
        decision, second = play(seen, 1000)
        assert (decision.replicas, second) == (2, None)


def test_the_next_one_needs_the_whole_wait_again():
    decision, second = play(Seen(1, 0, wait_s=9.0, in_flight=8, room=8), 60)
    decision, second = play(Seen(2, 0, wait_s=9.0, in_flight=16, room=16), 60, decision.memory, start=second + 1)
    assert (decision.replicas, second) == (3, 21)


def test_there_are_never_more_than_the_bound():
    decision, second = play(Seen(4, 0, wait_s=99.0, in_flight=32, room=32), 1000)
    assert (decision.replicas, second) == (4, None)


def test_long_calm_takes_one_away_and_never_the_last():
    decision, second = play(Seen(3, 0, in_flight=6, room=24), 1000)
    assert (decision.replicas, second) == (2, 300)
    assert decision.reason == "the rest will be used 38%"
    decision, second = play(Seen(1, 0, in_flight=0, room=8), 1000)
    assert (decision.replicas, second) == (1, None)


def test_what_the_rest_could_not_carry_with_room_to_spare_stays():
    decision, second = play(Seen(2, 0, in_flight=5, room=16), 1000)  # 5 of 8
    assert (decision.replicas, second) == (2, None)


def test_one_busy_moment_begins_the_calm_anew():
    memory = Memory()
    for second in range(700):
        in_flight = 20 if second == 250 else 2
        decision = decide(Seen(3, 0, in_flight=in_flight, room=24), memory, BOUNDS, float(second))
        memory = decision.memory
        if decision.replicas != 3:
            break
    assert (decision.replicas, second) == (2, 551)


def test_without_knowing_the_room_only_idleness_takes_one_away():
    assert play(Seen(3, 0, in_flight=1, room=None), 1000)[1] is None
    assert play(Seen(3, 0, in_flight=0, room=None), 1000)[1] == 300


def test_a_pool_outside_its_bounds_is_brought_back_at_once():
    assert decide(Seen(9, 0), Memory(), BOUNDS, 0.0).replicas == 4
    assert decide(Seen(1, 0), Memory(), dataclasses.replace(BOUNDS, least=2), 0.0).replicas == 2


@pytest.mark.parametrize("load", [1, 3, 7, 12, 20, 31])
def test_under_a_steady_load_it_comes_to_rest(load):
    """A fleet of engines of eight requests each: whatever the load, there is a last change, and then none in an hour."""
    replicas, memory, changes = 1, Memory(), []
    for second in range(7200):
        room = 8 * replicas
        waiting = max(load - room, 0)
        seen = Seen(replicas, 0, wait_s=waiting * 1.0, in_flight=min(load, room), room=room)
        decision = decide(seen, memory, BOUNDS, float(second))
        memory = decision.memory
        if decision.replicas != replicas:
            changes.append(second)
            replicas = decision.replicas
    assert not changes or changes[-1] < 3600
    assert load <= 8 * replicas + 2 or replicas == BOUNDS.most


async def test_each_pool_is_looked_at_and_resized():
    asked = []

    async def resize(pool, replicas):
        asked.append((pool, replicas))

    clock = itertools.count()
    looks = {"busy": Seen(1, 0, wait_s=9.0, in_flight=8, room=8), "quiet": Seen(1, 0, room=8), "unknown": None}
    scaler = Scaler(
        lambda: dict.fromkeys(looks, BOUNDS), looks.get, resize, clock=lambda: next(clock), log=structlog.get_logger()
    )
    for _ in range(8):
        await scaler.step()
    assert asked == [("busy", 2)]


async def test_a_change_that_is_refused_is_not_asked_for_again_at_once(capsys):
    asked, now = [], [0.0]

    async def resize(pool, replicas):
        asked.append(now[0])
        raise OperatorError("there is no room")

    seen = Seen(1, 0, wait_s=9.0, in_flight=8, room=8)
    scaler = Scaler(lambda: {"p": BOUNDS}, lambda _: seen, resize, clock=lambda: now[0], log=structlog.get_logger())
    while now[0] < 200:
        await scaler.step()
        now[0] += 1
    assert asked[0] == 10.0
    assert asked[1] >= 10.0 + REFUSED_PAUSE_S
    assert "there is no room" in capsys.readouterr().out
