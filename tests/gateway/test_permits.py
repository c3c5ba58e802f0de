"""Long prompts among short requests, in any order of coming, starting, ending and leaving: permits are kept count of, room
is used, nobody is left to wait for ever, and over a long run everybody has the share that its weight says.
"""

import heapq
import itertools
import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.test_line_holds import (
    CLASS_NAMES,
    LIMITS,
    OPTIONS,
    STEP,
    TENANTS,
    TOKENS,
    WHICH,
    Host,
    Job,
    Run,
)
from tidegate.errors import RateLimited, RequestError
from tidegate.gateway.dispatch import LONG_BYTES, Line, holds_up
from tidegate.gateway.shares import NO_DEMAND
from tidegate.types import CLASSES, ClassView, LimitOptions, TenantView

SIZES = st.sampled_from([500, LONG_BYTES - 1, LONG_BYTES, LONG_BYTES, 100_000])


class SizedJob(Job):
    """One that is read for a while, if it is long, until its first token is there."""

    has_begun = False

    @property
    def reading(self):
        return self.state == "running" and not self.has_begun


class LongRun(Run):
    """Requests of any size, and first tokens that come when they come."""

    def come(self, klass, tenant, tokens, size):
        job = SizedJob(self, klass, tenant, tokens, plain=True)
        job.size = size
        self.jobs.append(job)
        latest_s = self.now + self.line.states[klass].max_wait_s
        try:
            self.line.submit(job)
        except RequestError as error:
            job.state, job.refused_with = "refused", error
            return
        if job.state == "new":
            job.state, job.due_s = "waiting", latest_s

    def begin(self, which):
        """The first token of a request that runs."""
        running = self.of("running")
        if running:
            running[which % len(running)].has_begun = True

    def first_waiting(self):
        """Of each class and tenant the one that goes next."""
        first = {}
        for entry in self.line.queue:
            key = entry.klass.name, entry.tenant
            first[key] = min(first.get(key, entry), entry)
        return [entry.item for entry in first.values()]

    def check_long(self):
        assert self.line._long == sum(job.size >= LONG_BYTES for job in self.of("running"))

    def check_room_is_used(self):
        """After a look. A slot stands idle only where a prompt is being read that whoever waits must not stand behind, or
        where room is kept for the demand of those who do not yield."""
        hosts = self.usable()
        demand, firm_waiting = self.line._firm(self.now)
        reading = [host for host in hosts if any(holds_up(job, self.now) for job in host.jobs)]
        for job in self.first_waiting():
            state = self.line.states[job.klass.name]
            open_to = [host for host in hosts if host.is_open_to(job)]
            if job.klass.first_token_s is not None and len(reading) < len(hosts):
                open_to = [host for host in open_to if host not in reading]
            if self.line.total is not None and not self.line._may_have_more(state, self.now):
                assert state.view.yields
            elif not job.klass.yields or job.size < LONG_BYTES or (demand < NO_DEMAND and not firm_waiting):
                assert not open_to, f"{job.klass.name} of {job.size} bytes waits, with room"

    def check_it_moves(self):
        """Nobody waits where nothing runs: nothing would ever start them."""
        if self.usable() and not self.of("running"):
            assert not self.of("waiting")


COME = st.tuples(st.just("come"), CLASS_NAMES, TENANTS, TOKENS, SIZES)
LONG_STEP = st.one_of(
    COME,
    COME,
    COME,
    st.tuples(st.just("begin"), WHICH),
    st.tuples(st.just("begin"), WHICH),
    STEP,
    STEP,
    STEP,
    st.tuples(st.just("reach"), WHICH, st.just(True)),
)
LONG_STEPS = st.lists(LONG_STEP, min_size=20, max_size=80)


@settings(max_examples=250, deadline=None, derandomize=True)
@given(st.lists(st.tuples(LIMITS, st.sampled_from([None, None, 500])), min_size=1, max_size=4), LONG_STEPS)
def test_with_long_prompts_permits_never_leak_and_room_is_used(bounds, steps):
    run = LongRun([Host(limit, kv_tokens) for limit, kv_tokens in bounds])
    for name, *arguments in steps:
        getattr(run, name)(*arguments)
        run.check_permits()
        run.check_long()
        run.look()
        run.check_room_is_used()
        run.check_it_moves()
        run.check_permits()
    run.close()
    assert run.line._long == 0


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.lists(LIMITS, min_size=1, max_size=4), LONG_STEPS)
def test_whoever_waits_is_started_when_those_before_it_end_and_nobody_comes_any_more(limits, steps):
    """No time passes, so nobody is refused for having waited: all that wait are started, whatever their class and size."""
    run = LongRun([Host(limit) for limit in limits])
    for name, *arguments in steps:
        getattr(run, name)(*arguments)
    run.look()
    waiting = run.of("waiting")
    while run.of("running"):
        run.of("running")[0].end(well=True)
        run.line.look()
    assert not run.of("waiting")
    assert all(job.state == "ended" for job in waiting)


# over a long run

FOR_EVER_S = 1e9
A, B, C = (ClassView(name, weight=weight, max_wait_s=FOR_EVER_S) for name, weight in (("a", 8), ("b", 4), ("c", 2)))
TAKES_S = {"a": 0.4, "b": 1.0, "c": 2.0}
READ_S = 0.3


class SteadyJob:
    """One of a class and tenant that always have some waiting."""

    granted_s = 0.0
    begun_s = None
    tokens = 100

    def __init__(self, flow, klass, tenant, size):
        self.flow, self.klass, self.tenant, self.size = flow, klass, tenant, size

    @property
    def reading(self):
        return self.flow.now - self.granted_s < READ_S

    def candidates(self):
        return self.flow.hosts

    def pick(self, hosts):
        return min(hosts, key=lambda host: host.in_flight)

    def start(self, host):
        self.host = host
        host.jobs[self] = None
        host.in_flight += 1
        self.flow.started(self)

    def end(self):
        del self.host.jobs[self]
        self.host.in_flight -= 1
        self.flow.line.ended(self, well=True)

    def refuse(self, error):
        raise AssertionError(error)


class Flow:
    """Time, in which of every class and tenant two always wait."""

    def __init__(self, classes, tenants, *, hosts=3, limit=8, seed=1, long_share=0.2):
        self.now, self.events, self.order = 0.0, [], itertools.count()
        self.hosts = [Host(float(limit)) for _ in range(hosts)]
        self.random, self.long_share = random.Random(seed), long_share
        self.held_s, self.last_s, self.longest_gap_s = Counter(), {}, Counter()
        self.line = Line(lambda: self.hosts, lambda: self.now)
        self.line.apply(classes, [TenantView(name, weight=weight) for name, weight in tenants.items()], LimitOptions())
        self.slots = hosts * limit
        for klass, tenant in itertools.product(classes, tenants):
            self.last_s[klass.name, tenant] = 0.0
            for _ in range(3):
                self.submit(klass, tenant)
        self.later(0.05, self.look)

    def later(self, seconds, act):
        heapq.heappush(self.events, (self.now + seconds, next(self.order), act))

    def submit(self, klass, tenant):
        size = LONG_BYTES if self.random.random() < self.long_share else 500
        self.line.submit(SteadyJob(self, klass, tenant, size))

    def look(self):
        self.line.look()
        assert sum(host.in_flight for host in self.hosts) >= self.slots, "a slot stands idle while all wait"
        self.later(0.05, self.look)

    def started(self, job):
        key = job.klass.name, job.tenant
        takes_s = TAKES_S.get(job.klass.name, 0.5) * self.random.uniform(0.8, 1.2)
        self.held_s[key] += takes_s
        self.longest_gap_s[key] = max(self.longest_gap_s[key], self.now - self.last_s[key])
        self.last_s[key] = self.now
        self.later(takes_s, job.end)
        self.later(0.0, lambda: self.submit(job.klass, job.tenant))

    def run(self, seconds):
        while self.events[0][0] <= seconds:
            self.now, _, act = heapq.heappop(self.events)
            act()
        self.now = seconds

    def share(self, klass, tenant=None):
        """Of the time that slots were held: that of a class, or of one of its tenants within it."""
        own = {key: held for key, held in self.held_s.items() if key[0] == klass}
        if tenant is not None:
            return own[klass, tenant] / sum(own.values())
        return sum(own.values()) / self.held_s.total()


@pytest.mark.parametrize("long_share", [0.0, 0.2], ids=["short ones", "every fifth one long"])
def test_over_a_long_run_slots_are_held_by_weight_between_classes_and_between_tenants(long_share):
    """Classes whose requests take 0.4, 1 and 2 s: what is shared is the time on the engines, not their number."""
    tenants = {"x": 3.0, "y": 1.0}
    flow = Flow((A, B, C), tenants, long_share=long_share)
    flow.run(200.0)
    for klass in (A, B, C):
        assert flow.share(klass.name) == pytest.approx(klass.weight / 14, rel=0.05)
        assert flow.share(klass.name, "x") == pytest.approx(0.75, rel=0.05)


@pytest.mark.parametrize("long_share", [0.0, 0.2], ids=["short ones", "every fifth one long"])
def test_under_the_heaviest_demand_of_others_those_that_yield_have_their_least_share_and_nobody_is_starved(long_share):
    patient = [ClassView(view.name, view.pools, view.weight, FOR_EVER_S, None, *_rest(view)) for view in CLASSES]
    flow = Flow(patient, {"x": 1.0, "y": 1.0}, long_share=long_share)
    flow.run(100.0)
    for name in ("batch", "long"):
        assert flow.share(name) >= 0.04
    assert flow.share("batch") + flow.share("long") <= 0.2
    assert flow.share("interactive") == pytest.approx(4 * flow.share("standard"), rel=0.1)
    assert set(flow.longest_gap_s) == set(itertools.product(("interactive", "standard", "batch", "long"), "xy"))
    assert max(flow.longest_gap_s.values()) <= 10.0


def _rest(view):
    return view.most_share, view.least_share, view.yields


def test_who_yields_is_refused_rather_than_left_to_wait_for_a_turn_that_does_not_come():
    """With no least share and all the slots in demand, batch work waits for its 60 s, and is told so at their end."""
    run = LongRun([Host(1.0)])
    run.line.apply([ClassView("batch", max_wait_s=60.0, yields=True)], (), OPTIONS)
    run.come("standard", "x", 10, 500)
    run.come("batch", "x", 10, 500)
    (batch,) = run.of("waiting")
    for _ in range(70):
        run.now += 1.0
        for job in run.of("running"):
            job.end(well=True)
        for _ in range(3):
            run.come("standard", "x", 10, 500)
        run.line.look()
        if batch.state != "waiting":
            break
    assert batch.state in {"running", "refused"}
    if batch.state == "refused":
        assert isinstance(batch.refused_with, RateLimited)
        assert batch.due_s <= run.now <= batch.due_s + 1.0
