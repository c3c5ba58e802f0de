"""An engine that makes its tokens too slowly for anyone to read has too many answers at once."""

from tidegate.gateway.limits import LEAST_FACTOR, LOOKS_SLOW, after, begin
from tidegate.types import LimitOptions, Load

OPTIONS = LimitOptions(token_s=0.5)


class Engine:
    """Looked at every second; told how many slots it has."""

    def __init__(self, slots=16):
        self.state, self.now, self.steps = begin(OPTIONS, slots), 0.0, 0
        self.look(0)

    def look(self, steps, *, running=16, waiting=0, every_s=1.0):
        self.now += every_s
        self.steps += steps
        load = Load(running=running, waiting=waiting, iterations_total=self.steps)
        self.state = after(self.state, load, OPTIONS, in_flight=running + waiting, wait_s=0.0, now=self.now)
        return self.state.limit

    def looks(self, count, steps, **load):
        for _ in range(count):
            self.look(steps, **load)
        return self.state.limit


def test_steps_that_are_slow_for_long_lower_the_limit_and_quick_ones_bring_it_back():
    engine = Engine()
    assert engine.looks(LOOKS_SLOW, 1) == 16, "a prompt may have been read between them"
    assert 16 * 0.9**4 <= engine.looks(3, 1) < 16
    assert engine.looks(60, 1) == 16 * LEAST_FACTOR
    assert engine.looks(60, 10) == 16


def test_where_steps_are_nearly_slow_the_limit_stays_where_it_is():
    engine = Engine()
    lowered = engine.looks(LOOKS_SLOW + 4, 1)
    for _ in range(20):
        assert engine.look(9, every_s=4.0) == lowered


def test_one_long_pause_is_no_slowness():
    engine = Engine()
    for _ in range(20):
        engine.looks(LOOKS_SLOW - 1, 0)
        assert engine.look(40) == 16


def test_an_engine_with_nothing_to_do_is_not_slow():
    assert Engine().looks(50, 0, running=0) == 16


def test_looks_in_quick_succession_do_not_take_a_step_that_goes_on_for_a_pause():
    engine = Engine()
    for _ in range(200):
        engine.look(1, every_s=0.05)
        engine.looks(6, 0, every_s=0.05)
    assert engine.state.limit == 16
    for _ in range(20):
        engine.look(1, every_s=0.05)
        engine.looks(15, 0, every_s=0.05)
    assert engine.state.limit < 16, "0.8 s a step"


def test_an_engine_that_began_anew_or_tells_no_steps_is_not_slow():
    engine = Engine()
    engine.looks(LOOKS_SLOW, 1)
    engine.steps = 0
    assert engine.look(0) == 16
    assert engine.state.slow == 0
