"""What all gateways report, added up."""

import math

import pytest

from tidegate.control.sums import WINDOW_S, FirstToken, Told, add_up, quantile, trim
from tidegate.types import ClassReport, DataReport, GpuReport, ProcessId, ReplicaReport


def told(at_s, *, classes=(), replicas=(), requests=None, pid=1, connections=0, in_flight=0, gpus=()):
    report = DataReport(
        process=ProcessId(pid, 1),
        snapshot=1,
        connections=connections,
        in_flight=in_flight,
        requests=requests or {},
        replicas=tuple(replicas),
        classes=tuple(classes),
        gpus=tuple(gpus),
    )
    return Told(at_s, report)


def replica(name="p-0", **more):
    return ReplicaReport(**{"id": name, "in_flight": 0, "requests": 0, "failures": 0, "reachable": True, **more})


def counted(*totals, pid=1):
    """A gateway whose counter of tokens is read once a second."""
    return [told(float(n), classes=[ClassReport("batch", tokens=total)], pid=pid) for n, total in enumerate(totals)]


def test_counts_of_all_gateways_are_added_and_the_longest_wait_is_told():
    one = [told(5.0, classes=[ClassReport("batch", 3, 1.5, 2, 7, 10, 100)], connections=4, in_flight=2)]
    other = [told(5.0, classes=[ClassReport("batch", 1, 9.0, 1, 1, 2, 50)], connections=1, in_flight=1)]
    sums = add_up([one, other], now=5.0)
    (batch,) = sums.classes
    assert (batch.queued, batch.wait_s, batch.in_flight) == (4, 9.0, 3)
    assert (batch.refused, batch.done, batch.tokens) == (8, 12, 150)
    assert (sums.gateways, sums.connections, sums.in_flight, sums.queued) == (2, 5, 3, 4)


def test_a_rate_is_what_the_counters_grew_by_each_second_over_all_gateways():
    assert add_up([counted(0, 10, 20), counted(100, 105, 110)], now=2.0).tokens_per_s == 15.0


def test_one_report_alone_has_no_rate_however_large_its_counters_are():
    assert add_up([counted(1000)], now=0.0).tokens_per_s == 0.0
    assert add_up([[told(1.0, requests={"done": 5}), told(1.0, requests={"done": 9})]], now=1.0).requests_per_s == 0.0


def test_a_counter_that_begins_anew_counts_from_nothing_and_no_rate_is_negative():
    assert add_up([counted(90, 100, 4, 10)], now=3.0).tokens_per_s == pytest.approx((10 + 4 + 6) / 3)


def test_a_gateway_that_takes_anothers_place_adds_only_what_it_served_itself():
    before = add_up([counted(0, 50)], now=1.0)
    after = add_up([counted(5000, pid=2)], now=2.0)
    assert (before.tokens_per_s, after.tokens_per_s) == (50.0, 0.0)


def test_requests_failures_and_refusals_have_rates_of_their_own():
    first = told(0.0, requests={"done": 10, "failed": 1, "cancelled": 0}, classes=[ClassReport("batch", refused=5)])
    last = told(2.0, requests={"done": 20, "failed": 3, "cancelled": 4}, classes=[ClassReport("batch", refused=9)])
    sums = add_up([[first, last]], now=2.0)
    assert (sums.requests_per_s, sums.failed_per_s, sums.refused_per_s) == (8.0, 1.0, 2.0)


def test_a_gateway_that_fell_silent_has_no_part_in_the_rates_and_keeps_what_it_held():
    series = [told(float(n), requests={"done": n * 10}, in_flight=3) for n in range(3)]
    sums = add_up([series], now=60.0)
    assert (sums.requests_per_s, sums.in_flight, sums.gateways) == (0.0, 3, 1)


def test_times_to_the_first_token_are_quantiles_over_the_samples_of_all_gateways():
    one = [told(0.0, classes=[ClassReport("interactive", first_token_s=tuple(n / 100 for n in range(1, 51)))])]
    other = [told(0.0, classes=[ClassReport("interactive", first_token_s=tuple(n / 100 for n in range(51, 101)))])]
    sums = add_up([one, other, [told(0.0, classes=[ClassReport("batch", first_token_s=(7.0,))])]], now=0.0)
    assert sums.classes[0].first_token == FirstToken(0.5, 0.99, 100)
    assert sums.classes[1].first_token == FirstToken(7.0, 7.0, 1)
    assert sums.first_token.samples == 101


def test_samples_older_than_the_window_are_not_told():
    series = [
        told(0.0, classes=[ClassReport("batch", first_token_s=(9.0,))]),
        told(WINDOW_S + 1, classes=[ClassReport("batch", first_token_s=(1.0,))]),
    ]
    assert add_up([series], now=WINDOW_S + 1).first_token == FirstToken(1.0, 1.0, 1)


@pytest.mark.parametrize(
    ("values", "share", "right"),
    [((), 0.5, None), ((3.0,), 0.99, 3.0), ((1.0, 2.0), 0.5, 1.0), ((2.0, 1.0, 3.0), 1.0, 3.0), ((5.0, 4.0), 0.0, 4.0)],
)
def test_a_quantile_is_by_nearest_rank_and_none_of_nothing(values, share, right):
    assert quantile(values, share) == right


def test_a_replica_is_what_all_gateways_have_with_it():
    one = [told(1.0, replicas=[replica(in_flight=2, limit=4, by_class={"batch": 2}, health="errors")])]
    other = [told(1.0, replicas=[replica(in_flight=3, limit=5, by_class={"batch": 1, "long": 2})])]
    (sum_,) = add_up([one, other], now=1.0).replicas
    assert (sum_.in_flight, sum_.limit, sum_.by_class, sum_.health) == (5, 9, {"batch": 3, "long": 2}, ("errors",))


def test_where_one_gateway_has_no_limit_there_is_none():
    one = [told(1.0, replicas=[replica(limit=4)])]
    assert add_up([one, [told(1.0, replicas=[replica()])]], now=1.0).replicas[0].limit is None


def test_what_an_engine_says_of_itself_is_the_latest_that_was_heard_and_never_a_sum():
    old = [told(1.0, replicas=[replica(running=7, waiting=1, kv_usage=0.5)])]
    new = [told(2.0, replicas=[replica(running=8, waiting=0)])]
    for gateways in ([old, new], [new, old]):
        (sum_,) = add_up(gateways, now=2.0).replicas
        assert (sum_.running, sum_.waiting, sum_.kv_usage) == (8, 0, 0.5)


def test_classes_and_replicas_come_in_the_order_asked_for_with_those_nobody_reported():
    reports = [told(0.0, classes=[ClassReport("own"), ClassReport("batch")], replicas=[replica("p-1")])]
    sums = add_up([reports], now=0.0, classes=("interactive", "batch"), replicas=("p-0", "p-1"))
    assert [one.name for one in sums.classes] == ["interactive", "batch", "own"]
    assert [one.id for one in sums.replicas] == ["p-0", "p-1"]
    assert sums.replicas[0].limit is None


def test_no_gateway_at_all_is_zeros():
    sums = add_up([], now=1.0, classes=("batch",))
    assert (sums.gateways, sums.requests_per_s, sums.first_token) == (0, 0.0, FirstToken())
    assert math.isclose(sums.classes[0].wait_s, 0.0)


def test_what_is_too_old_is_forgotten_but_the_latest_stays():
    series = [told(0.0), told(1.0), told(2.0)]
    trim(series, 11.5)
    assert [one.at_s for one in series] == [2.0]
    trim(series, 1000.0)
    assert [one.at_s for one in series] == [2.0]


def test_a_gpu_that_several_gateways_see_is_told_once_as_it_was_last():
    early = [told(1.0, gpus=[GpuReport("a", use=0.1), GpuReport("b", use=0.2)])]
    late = [told(2.0, gpus=[GpuReport("a", use=0.9)])]
    for gateways in ([early, late], [late, early]):
        assert {one.id: one.use for one in add_up(gateways, now=2.0).gpus} == {"a": 0.9, "b": 0.2}


def test_the_gpus_that_control_reads_itself_come_first_and_are_believed():
    own = (GpuReport("c", use=0.5), GpuReport("a", use=0.4))
    gateways = [[told(2.0, gpus=[GpuReport("a", use=0.9), GpuReport("b", use=0.2)])]]
    assert [(one.id, one.use) for one in add_up(gateways, now=2.0, gpus=own).gpus] == [
        ("c", 0.5),
        ("a", 0.4),
        ("b", 0.2),
    ]
