"""Reports of several gateways become one sample a minute, whatever the disk does."""

import msgspec
import structlog
from structlog.testing import capture_logs

from tidegate.control.report.recorder import MOST_WAITING, Recorder
from tidegate.control.report.samples import ClassSample, Gathering, TenantSample, quantile, share_within
from tidegate.control.sums import ReplicaSum, Sums
from tidegate.gateway.metrics import BUCKETS_S, BUCKETS_TOKENS
from tidegate.types import DataReport, GpuReport, Outcome, ProcessId, Spread, UsageCount


def seconds(*counts):
    return counts + (0,) * (len(BUCKETS_S) + 1 - len(counts))


def tokens(*counts):
    return counts + (0,) * (len(BUCKETS_TOKENS) + 1 - len(counts))


def report(pid=1, tenant="t", requests=2):
    usage = UsageCount("2026-12-01", tenant, "batch", "m", Outcome.DONE, requests, 10 * requests, requests, 1.5)
    none, low = seconds(0, requests), seconds(requests)
    spread = Spread("batch", none, low, low, tokens(requests), tokens(0, requests), 3)
    return DataReport(ProcessId(pid, 1), 1, 0, 0, {}, (), usage=(usage,), spreads=(spread,))


def sums(in_flight=0, limit=4, use=0.5, queued=0):
    replica = ReplicaSum("p-0", limit=limit, in_flight=in_flight, waiting=in_flight)
    return Sums(queued=queued, replicas=(replica,), gpus=(GpuReport("g", use=use), GpuReport("silent")))


def test_several_gateways_are_added_up():
    gathering = Gathering()
    for one in (report(1), report(2), report(2, tenant="u")):
        gathering.add(one)
    sample = gathering.take(100.0, 60.0)
    all_six = ClassSample({"done": 6}, 9, seconds(0, 6), seconds(6), seconds(6), tokens(6), tokens(0, 6))
    assert sample.classes == {"batch": all_six}
    assert sample.tenants == {"t": TenantSample(4, 40, 4, 3.0), "u": TenantSample(2, 20, 2, 1.5)}
    assert gathering.take(160.0, 60.0).classes == {}


def test_a_gateway_with_other_bounds_is_counted_without_them():
    gathering, odd = Gathering(), report()
    spread = msgspec.structs.replace(odd.spreads[0], first_s=(1, 2, 3))
    gathering.add(report())
    gathering.add(msgspec.structs.replace(odd, spreads=(spread,)))
    batch = gathering.take(0.0, 60.0).classes["batch"]
    assert (batch.requests, batch.refused, batch.first_s) == ({"done": 4}, 3, seconds(0, 2))


def test_looks_count_by_the_time_that_they_stand_for():
    gathering = Gathering()
    gathering.look(sums(in_flight=4, limit=4, use=1.0, queued=2), 15.0)
    gathering.look(sums(in_flight=0, limit=6, use=0.5), 45.0)
    sample = gathering.take(0.0, 60.0)
    replica = sample.replicas["p-0"]
    assert (replica.limit, replica.in_flight, replica.busy_s, replica.waiting) == (6, 1.0, 15.0, 1.0)
    assert (sample.queued, sample.gpus) == (0.5, {"g": 0.75})


async def test_a_full_disk_keeps_samples_for_a_while_and_is_told_once():
    written, full, now = [], True, 0.0

    def write(samples):
        if full:
            raise OSError(28, "No space left on device")
        written.extend(samples)

    with capture_logs() as told:
        recorder = Recorder(write, sums, clock=lambda: now, wall=lambda: 1000 + now, log=structlog.get_logger())
        for minute in range(MOST_WAITING + 5):
            now = 60.0 * (minute + 1)
            recorder.add(report())
            await recorder.store()
        assert [line["cause"] for line in told] == ["No space left on device"]
        full = False
        await recorder.close()
    assert [one.at_s for one in written] == [1000 + 60.0 * minute for minute in range(5, MOST_WAITING + 5)]


def test_shares_and_quantiles_of_a_histogram_are_even_within_a_bucket():
    counts, bounds = (10, 10, 0, 5), (1.0, 2.0, 4.0)
    assert share_within(counts, bounds, 1.5) == 15 / 25
    assert share_within(counts, bounds, 1.0) == 10 / 25
    assert share_within(counts, bounds, 9.0) == 20 / 25
    assert share_within((), bounds, 1.0) is None
    assert quantile(counts, bounds, 0.5) == 1.25
    assert quantile(counts, bounds, 0.99) == 4.0
    assert quantile((0, 0, 0, 0), bounds, 0.5) is None
