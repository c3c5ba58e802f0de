"""Whoever is scraped answers for all, and no counter ever goes down."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.parser import text_string_to_metric_families

from tidegate.gateway import shared_metrics
from tidegate.gateway.shared_metrics import FRESH_S, PAST, Shares, file_name, fold
from tidegate.types import ProcessId


class Process:
    """A data process that counts requests by model, and has some in flight."""

    def __init__(self, number, folder, clock):
        self.id = ProcessId(number, 1000 + number)
        self.shares = Shares(folder, self.id, clock=clock)
        self.counts, self.in_flight = {}, 0

    def collect(self):
        counted = CounterMetricFamily("tidegate_requests", "Requests.", labels=("model",))
        took = HistogramMetricFamily("tidegate_took_seconds", "Seconds.", labels=("model",))
        for model, count in self.counts.items():
            counted.add_metric((model,), count)
            took.add_metric((model,), buckets=[("1", count // 2), ("+Inf", count)], sum_value=0.5 * count)
        busy = GaugeMetricFamily("tidegate_requests_in_flight", "In flight.", value=self.in_flight)
        reachable = GaugeMetricFamily("tidegate_replica_reachable", "Reachable.", labels=("replica",))
        reachable.add_metric(("p-0",), 1)
        yield from (counted, took, busy, reachable)

    def write(self):
        self.shares.write(*self.shares.page(self.collect()))

    def scrape(self):
        return values(self.shares._answer(*self.shares.page(self.collect())))


def values(text):
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


class Site:
    def __init__(self, folder):
        self.folder, self.now, self.alive = folder, 1000.0, []
        self.numbers = 0

    def start(self):
        self.numbers += 1
        process = Process(self.numbers, self.folder, lambda: self.now)
        self.alive.append(process)
        return process

    def fold(self):
        fold(self.folder, lambda process: any(one.id == process for one in self.alive))


@pytest.fixture
def site(tmp_path):
    return Site(tmp_path / "metrics")


REQUESTS = "tidegate_requests_total"


def test_any_process_answers_with_the_sum_of_all(site):
    one, two = site.start(), site.start()
    one.counts, two.counts = {"a": 2, "b": 1}, {"a": 5}
    one.in_flight, two.in_flight = 3, 4
    one.write()
    two.write()
    for process in (one, two):
        told = process.scrape()
        assert told[REQUESTS, ("model", "a")] == 7
        assert told[REQUESTS, ("model", "b")] == 1
        assert told["tidegate_took_seconds_bucket", ("le", "+Inf"), ("model", "a")] == 7
        assert told["tidegate_took_seconds_sum", ("model", "a")] == 3.5
        assert told["tidegate_requests_in_flight",] == 7
        assert told["tidegate_replica_reachable", ("replica", "p-0")] == 1


def test_what_the_dead_counted_stays_and_what_they_had_open_does_not(site):
    one, two = site.start(), site.start()
    one.counts, one.in_flight = {"a": 2}, 3
    one.write()
    site.alive.remove(one)
    assert two.scrape()["tidegate_requests_in_flight",] == 3, "nobody knows yet"
    site.now += FRESH_S
    assert two.scrape()["tidegate_requests_in_flight",] == 0
    site.fold()
    assert sorted(path.name for path in site.folder.iterdir()) == [file_name(two.id), PAST]
    told = two.scrape()
    assert (told[REQUESTS, ("model", "a")], told["tidegate_requests_in_flight",]) == (2, 0)


def test_a_counter_that_starts_anew_goes_on(site):
    """A replica that is another one counts from nothing; its series does not."""
    one = site.start()
    one.counts = {"a": 5}
    one.write()
    one.counts = {"a": 1}
    assert one.scrape()[REQUESTS, ("model", "a")] == 6
    one.counts = {}
    assert one.scrape()[REQUESTS, ("model", "a")] == 6
    one.counts = {"a": 2}
    assert one.scrape()[REQUESTS, ("model", "a")] in {7, 8}


def test_a_fold_that_was_cut_short_counts_nobody_twice(site, monkeypatch):
    one, two = site.start(), site.start()
    one.counts = {"a": 2}
    one.write()
    site.alive.remove(one)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            site.fold()
    assert len(list(site.folder.iterdir())) == 2
    assert two.scrape()[REQUESTS, ("model", "a")] == 2
    site.fold()
    assert two.scrape()[REQUESTS, ("model", "a")] == 2
    assert not (site.folder / file_name(one.id)).exists()


def test_a_file_folded_while_it_is_read_is_counted_once(site, monkeypatch):
    one, two = site.start(), site.start()
    one.counts = {"a": 2}
    one.write()
    site.alive.remove(one)
    read = shared_metrics._read

    def read_slowly(path, kind):
        found = read(path, kind)
        if path.name == file_name(one.id):
            monkeypatch.setattr(shared_metrics, "_read", read)
            site.fold()
        return found

    two.write()
    monkeypatch.setattr(shared_metrics, "_read", read_slowly)
    (requests,) = [family for family in two.shares.gather() if family.name == "tidegate_requests"]
    assert [sample.value for sample in requests.samples] == [2]


def test_what_another_version_wrote_is_left_out(site):
    one = site.start()
    one.write()
    (site.folder / "77-77.json").write_text('{"version": 9}')
    (site.folder / PAST).write_text("[]")
    assert one.scrape()["tidegate_requests_in_flight",] == 0


def test_an_older_page_does_not_replace_a_newer_one(site):
    one = site.start()
    one.counts = {"a": 1}
    early = one.shares.page(one.collect())
    one.counts = {"a": 2}
    one.write()
    one.shares.write(*early)
    assert one.scrape()[REQUESTS, ("model", "a")] == 2


class Interleavings(RuleBasedStateMachine):
    """Counts, writes, scrapes, deaths and folds in any order: what was told once is never taken back."""

    processes = Bundle("processes")

    @initialize(target=processes)
    def first(self):
        self.temporary = tempfile.TemporaryDirectory()
        self.site = Site(Path(self.temporary.name) / "metrics")
        self.told, self.counted = {}, {}
        return self.site.start()

    @rule(target=processes)
    def start(self):
        return self.site.start()

    @rule(process=processes, model=st.sampled_from("ab"), count=st.integers(1, 5))
    def count(self, process, model, count):
        process.counts[model] = process.counts.get(model, 0) + count
        self.counted[model] = self.counted.get(model, 0) + count

    @rule(process=processes, model=st.sampled_from("ab"))
    def begin_anew(self, process, model):
        process.write()
        process.counts.pop(model, None)

    @rule(process=processes)
    def write(self, process):
        process.write()

    @rule(process=processes, seconds=st.sampled_from((0.0, 1.0, 10.0)))
    def scrape(self, process, seconds):
        self.site.now += seconds
        told = {key: value for key, value in process.scrape().items() if key[0] != "tidegate_replica_reachable"}
        for key, value in self.told.items():
            assert told.get(key, 0) >= value
        self.told = told
        for model, count in self.counted.items():
            assert told.get((REQUESTS, ("model", model)), 0) <= count

    @rule(process=consumes(processes))
    def end(self, process):
        process.write()
        self.site.alive.remove(process)

    @rule(process=consumes(processes))
    def be_killed(self, process):
        self.site.alive.remove(process)

    @rule()
    def fold(self):
        self.site.fold()

    @invariant()
    def nothing_is_invented(self):
        assert all(value >= 0 for value in getattr(self, "told", {}).values())

    def teardown(self):
        if hasattr(self, "temporary"):
            self.temporary.cleanup()


TestInterleavings = Interleavings.TestCase
TestInterleavings.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
