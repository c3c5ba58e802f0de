"""The room is shared by weight between classes and between tenants, and within a tenant the earliest deadline goes."""

from collections import Counter

import pytest

from tidegate.gateway.queue import Entry, FairQueue
from tidegate.types import ClassView

A, B, C = ClassView("a", weight=16.0), ClassView("b", weight=4.0), ClassView("c", weight=1.0)
TAKES = 10_000


def entry(klass=A, tenant="t", *, deadline_s=10.0, size=100, weight=1.0, item=None):
    return Entry(item, klass, tenant, since_s=0.0, deadline_s=deadline_s, size=size, weight=weight)


def any_of(_entry):
    return True


def one_unit(_klass):
    return 1.0


def take(queue, start=any_of, work=one_unit):
    return queue.take(start, work)


def filled(*entries):
    queue = FairQueue()
    for one in entries:
        queue.push(one)
    return queue


def shares_of_classes(work):
    """The work that each class is given while all always have some waiting."""
    queue = filled(*(entry(klass) for klass in (A, B, C) for _ in range(3)))
    given = Counter()
    for _ in range(TAKES):
        taken = take(queue, work=work)
        given[taken.klass.name] += work(taken.klass)
        queue.push(entry(taken.klass))
    return {name: amount / given.total() for name, amount in given.items()}


@pytest.mark.parametrize("costs", [{"a": 1.0, "b": 1.0, "c": 1.0}, {"a": 0.3, "b": 2.0, "c": 5.0}])
def test_classes_share_by_weight_in_work(costs):
    shares = shares_of_classes(lambda klass: costs[klass.name])
    for klass in (A, B, C):
        assert shares[klass.name] == pytest.approx(klass.weight / 21.0, rel=0.05)


def test_tenants_of_a_class_share_by_weight():
    weights = {"x": 3.0, "y": 2.0, "z": 0.5}
    queue = filled(*(entry(tenant=name, weight=weight) for name, weight in weights.items() for _ in range(2)))
    taken = Counter()
    for _ in range(TAKES):
        name = take(queue).tenant
        taken[name] += 1
        queue.push(entry(tenant=name, weight=weights[name]))
    for name, weight in weights.items():
        assert taken[name] / TAKES == pytest.approx(weight / 5.5, rel=0.05)


def test_many_requests_gain_a_tenant_nothing():
    queue = filled(*(entry(tenant="many", deadline_s=1.0) for _ in range(500)))
    for _ in range(10):
        queue.push(entry(tenant="few", deadline_s=9.0))
    taken = Counter(take(queue).tenant for _ in range(20))
    assert taken == {"many": 10, "few": 10}


def test_tenants_of_one_class_do_not_move_the_share_of_another():
    queue = filled(
        *(entry(A, f"t{number}") for number in range(8) for _ in range(2000)), *(entry(B) for _ in range(2000))
    )
    taken = Counter(take(queue).klass.name for _ in range(5000))
    assert taken["a"] / 5000 == pytest.approx(0.8, rel=0.05)


def test_a_class_that_was_idle_gains_no_claim():
    even = ClassView("even", weight=A.weight)
    queue = filled(*(entry(A) for _ in range(1500)))
    for _ in range(1000):
        take(queue)
    for _ in range(100):
        queue.push(entry(even))
    taken = Counter(take(queue).klass.name for _ in range(100))
    assert 49 <= taken["even"] <= 51


def test_a_class_that_comes_and_goes_gains_no_claim():
    even = ClassView("even", weight=A.weight)
    queue = filled(entry(even), *(entry(A) for _ in range(1500)))
    for _ in range(1000):
        take(queue)
    assert queue.waiting("even") == 0
    for _ in range(100):
        queue.push(entry(even))
    taken = Counter(take(queue).klass.name for _ in range(100))
    assert 49 <= taken["even"] <= 51


def test_a_tenant_that_was_idle_gains_no_claim():
    queue = filled(*(entry(tenant="busy") for _ in range(1500)))
    for _ in range(1000):
        take(queue)
    for _ in range(100):
        queue.push(entry(tenant="idle"))
    taken = Counter(take(queue).tenant for _ in range(100))
    assert 49 <= taken["idle"] <= 51


def test_what_a_class_was_given_without_waiting_counts():
    even = ClassView("even", weight=A.weight)
    queue = filled(*(entry(klass) for klass in (A, even) for _ in range(100)))
    queue.charge(A, 10.0)
    taken = [take(queue).klass.name for _ in range(40)]
    assert taken[:10] == ["even"] * 10
    assert 14 <= taken[10:].count("a") <= 16


def test_the_earliest_deadline_of_a_tenant_goes_first_and_of_equals_the_one_that_came_first():
    times = [5.0, 3.0, 9.0, 3.0, 1.0]
    queue = filled(*(entry(deadline_s=time, item=number) for number, time in enumerate(times)))
    assert queue.first_deadline_s() == 1.0
    assert [take(queue).item for _ in times] == [4, 1, 3, 0, 2]
    assert take(queue) is None
    assert queue.first_deadline_s() == float("inf")


def test_one_that_cannot_start_lets_others_by():
    queue = filled(entry(A, "big"), entry(A, "small"), entry(B, "other"))
    asked = []

    def start(one):
        asked.append(one.tenant)
        return one.tenant == "other"

    assert take(queue, start).tenant == "other"
    assert asked == ["big", "small", "other"]
    assert take(queue, lambda _: False) is None
    assert len(queue) == 2


def test_removed_ones_are_never_taken_and_no_longer_count():
    entries = [entry(deadline_s=float(number), size=10 + number, item=number) for number in range(20)]
    queue = filled(*entries)
    for number in (0, 1, 7, 19, 3, 4, 5, 6, 8, 9, 10, 11, 12, 13):
        queue.remove(entries[number])
        queue.remove(entries[number])  # once more changes nothing
    left = [2, 14, 15, 16, 17, 18]
    assert sorted(one.item for one in queue) == left
    assert (len(queue), queue.waiting("a"), queue.bytes) == (6, 6, sum(10 + number for number in left))
    assert [take(queue).item for _ in left] == left
    assert (len(queue), queue.waiting("a"), queue.bytes, take(queue)) == (0, 0, 0, None)


def test_one_that_was_taken_can_be_removed_without_effect():
    queue = filled(entry(item=1), entry(item=2))
    queue.remove(take(queue))
    assert (len(queue), queue.bytes, [one.item for one in queue]) == (1, 100, [2])


def test_counts_and_bytes_per_class():
    queue = filled(entry(A, size=5), entry(A, "u", size=6), entry(B, size=7))
    assert (len(queue), queue.bytes) == (3, 18)
    assert [queue.waiting(name) for name in ("a", "b", "c")] == [2, 1, 0]
    taken = take(queue)
    assert (len(queue), queue.bytes) == (2, 18 - taken.bytes)


def test_overdue_are_those_whose_deadline_is_over():
    queue = filled(*(entry(klass, item=time, deadline_s=time) for klass in (A, B) for time in (1.0, 2.0, 3.0)))
    assert queue.overdue(0.9) == []
    assert [one.item for one in queue.overdue(2.0)] == [1.0, 2.0, 1.0, 2.0]
    for one in queue.overdue(2.0):
        queue.remove(one)
    assert queue.overdue(2.0) == []
    assert queue.first_deadline_s() == 3.0
