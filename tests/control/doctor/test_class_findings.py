"""The doctor measures a first token in the access log, and tells what is odd about classes, rules and keys."""

import json

from tidegate.config import load
from tidegate.control.doctor import classes
from tidegate.control.doctor.findings import Level
from tidegate.control.sums import ClassSum, FirstToken
from tidegate.types import KeyView


def lines(klass, first_ms, count=classes.LEAST_REQUESTS, **changes):
    told = {"class": klass, "stream": True, "outcome": "done", "moves": 0, "queue_ms": 5.0, "first_ms": first_ms + 5.0}
    return [json.dumps(told | changes).encode()] * count


def test_the_floor_is_the_smallest_median_of_a_class_without_its_wait():
    slow, quick = lines("batch", 900.0), lines("interactive", 300.0)
    assert classes.floor_of([*slow, *quick, *lines("interactive", 9000.0, 5)]) == 0.3


def test_what_says_nothing_of_an_engine_s_first_token_is_left_out():
    told = [
        *lines("batch", 300.0),
        *lines("a", 1.0, stream=False),
        *lines("b", 1.0, outcome="failed"),
        *lines("c", 1.0, moves=1),
        *lines("d", 1.0, classes.LEAST_REQUESTS - 1),
        *lines("e", 1.0, queue_ms=None),
        b"",
        b"[]",
        b'{"class": "ba',
    ]
    assert classes.floor_of(told) == 0.3
    assert classes.floor_of([]) is None


def test_only_the_end_of_the_log_is_read_and_no_log_is_no_floor(tmp_path):
    log = tmp_path / "access.log"
    assert classes.gather(log) is None
    old, new = lines("batch", 10.0, 100), lines("batch", 300.0, 50)
    log.write_bytes(b"\n".join([*old, *new]) + b"\n")
    assert classes.gather(log) == 0.01
    assert classes.gather(log, tail_bytes=len(new[0]) * 40) == 0.3


def test_what_gateways_report_counts_once_there_is_enough_of_it():
    told = [
        ClassSum("a", first_token=FirstToken(p50_s=0.4, samples=50)),
        ClassSum("b", first_token=FirstToken(p50_s=0.2, samples=classes.LEAST_REQUESTS)),
        ClassSum("c", first_token=FirstToken(p50_s=0.1, samples=classes.LEAST_REQUESTS - 1)),
        ClassSum("d"),
    ]
    assert classes.floor_reported(told) == 0.2
    assert classes.floor_reported(told[2:]) is None


def test_each_concern_is_a_note_with_something_to_do():
    settings = load(None, {"rule": [{"class": "batch", "path": "/nowhere"}]}, {})
    key = KeyView("d", "anna", "sales", classes=("gone",))
    found = list(classes.check(settings, [key], 0.6))
    assert [one.level for one in found] == [Level.NOTE] * 3
    assert all(one.advice for one in found)
    assert {one.text.split(": ")[0] for one in found} == {"rule.1.path", "class 'interactive' (built in)", "key 'anna'"}


def test_without_a_concern_that_is_said():
    (found,) = classes.check(load(None, {}, {}), (), None)
    assert (found.level, found.text) == (Level.OK, "4 classes, 0 rules of the settings")
