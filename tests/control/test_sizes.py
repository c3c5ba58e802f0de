"""What the policy of scaling is told of a pool."""

from tidegate.config import load
from tidegate.control.sizes import bounds, seen
from tidegate.control.sums import ClassSum, ReplicaSum, Sums
from tidegate.types import ReplicaState

READY, STARTING, FAILED = ReplicaState.READY, ReplicaState.STARTING, ReplicaState.FAILED


def sums(*replicas, queued=0, wait_s=0.0, refused=0):
    return Sums(gateways=1, classes=(ClassSum("c", queued=queued, wait_s=wait_s, refused=refused),), replicas=replicas)


def test_only_pools_with_bounds_are_scaled():
    pool = {"model": "m", "engine": "fake"}
    with_bounds = {**pool, "name": "b", "replicas_min": 1, "replicas_max": 3, "scaling": {"wait_s": 5.0}}
    settings = load(None, {"pool": [{**pool, "name": "a"}, with_bounds]}, {})
    found = bounds(settings)
    assert list(found) == ["b"]
    assert (found["b"].least, found["b"].most, found["b"].wait_s) == (1, 3, 5.0)


def test_room_is_what_limits_say_and_slots_where_there_is_no_limit():
    told = sums(ReplicaSum("p-0", limit=6, in_flight=2), ReplicaSum("p-1", in_flight=1))
    states = {"p-0": READY, "p-1": READY}
    assert seen(told, states, {"p-0": 8, "p-1": 8}, alone=True).room == 14
    assert seen(told, states, {"p-0": 8, "p-1": None}, alone=True).room is None


def test_only_ready_replicas_have_room_and_only_those_that_come_are_starting():
    told = sums(ReplicaSum("p-0", limit=6, in_flight=2), ReplicaSum("p-1", limit=6), ReplicaSum("p-2", limit=6))
    look = seen(told, {"p-0": READY, "p-1": STARTING, "p-2": FAILED}, {}, alone=True)
    assert (look.replicas, look.starting, look.room, look.in_flight) == (3, 1, 6, 2)


def test_waiting_counts_for_the_pool_that_is_full():
    told = sums(
        ReplicaSum("p-0", limit=4, in_flight=4),
        ReplicaSum("q-0", limit=4, in_flight=1),
        queued=3,
        wait_s=7.0,
        refused=2,
    )
    full = seen(told, {"p-0": READY}, {}, alone=False)
    assert (full.wait_s, full.refused) == (7.0, 2)
    free = seen(told, {"q-0": READY}, {}, alone=False)
    assert (free.wait_s, free.refused) == (0.0, 0)


def test_a_wait_that_nobody_has_is_none():
    told = sums(ReplicaSum("p-0", limit=4, in_flight=4), queued=0, wait_s=7.0)
    assert seen(told, {"p-0": READY}, {}, alone=True).wait_s == 0.0
