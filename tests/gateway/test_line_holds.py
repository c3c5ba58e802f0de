"""Whatever comes, ends, leaves and changes, in any order: no permit leaks, and no room is left to stand empty."""

from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.errors import NotFound, RequestError
from tidegate.gateway.dispatch import Line
from tidegate.types import CLASSES, LimitOptions, TenantView

BY_NAME = {one.name: one for one in CLASSES}
FIRM = ("interactive", "standard")
OPTIONS = LimitOptions(queue_requests=12, queue_bytes=1_000_000)


class Host:
    pool = "default"

    def __init__(self, limit, kv_tokens=None):
        self.in_flight = self.tokens = 0
        self.kv_tokens = kv_tokens
        self.jobs = {}
        self.usable = True
        self.set(limit)

    def set(self, limit):
        self.limit = limit
        self.room = float("inf") if limit is None else int(limit)

    def is_open_to(self, job):
        """Room that needs no foresight: a slot is free, and the cache holds it too."""
        if self.limit is not None and self.in_flight + 1 > self.limit:
            return False
        if self.kv_tokens is None or not self.in_flight:
            return True
        return self.tokens + job.tokens <= self.kv_tokens * OPTIONS.kv_share


class Job:
    size, granted_s = 500, 0.0
    begun_s = None

    def __init__(self, run, klass, tenant, tokens, *, plain):
        self.run, self.klass, self.tenant, self.tokens, self.plain = run, BY_NAME[klass], tenant, tokens, plain
        self.state = "new"
        self.refused_with = None
        self.due_s = None
        """What its line has promised: it waits no longer than until then."""

    @property
    def reading(self):
        return self.state == "running"

    def candidates(self):
        if not self.plain and not self.run.serves_all:
            raise NotFound("no replica has what it asks for")
        return self.run.usable()

    def pick(self, hosts):
        return hosts[0]

    def start(self, host):
        assert self.state in {"new", "waiting"}, f"started one that {self.state}"
        assert host.usable
        assert self.due_s is None or self.run.now < self.due_s
        self.state, self.host = "running", host
        host.jobs[self] = None
        host.in_flight += 1
        host.tokens += self.tokens
        self.run.grants += 1

    def refuse(self, error):
        assert self.state == "waiting", f"refused one that {self.state}"
        assert isinstance(error, RequestError)
        self.state, self.refused_with = "refused", error

    def end(self, *, well):
        self.state = "ended"
        del self.host.jobs[self]
        self.host.in_flight -= 1
        self.host.tokens -= self.tokens
        if well:
            self.run.line.states[self.klass.name].began(min(0.1, self.run.now - self.granted_s))
        self.run.line.ended(self, well=well)


class Run:
    """A line with its replicas and requests, and what has to hold of them at every moment."""

    def __init__(self, hosts):
        self.now, self.grants = 100.0, 0
        self.hosts, self.jobs = hosts, []
        self.serves_all = True
        """Whether the fleet has what those that are not plain ask for."""
        self.line = Line(self.usable, lambda: self.now)
        self.line.apply(CLASSES, (TenantView("x", weight=3.0),), OPTIONS)

    def usable(self):
        return [host for host in self.hosts if host.usable]

    def of(self, state):
        return [job for job in self.jobs if job.state == state]

    # steps

    def arrive(self, klass, tenant, tokens, plain=True):  # noqa: FBT002 - drawn by Hypothesis, never written by hand
        job = Job(self, klass, tenant, tokens, plain=plain)
        self.jobs.append(job)
        latest_s = self.now + self.line.states[klass].max_wait_s
        try:
            self.line.submit(job)
        except RequestError as error:
            assert job.state == "new"
            job.state, job.refused_with = "refused", error
            return
        if job.state == "new":
            job.state, job.due_s = "waiting", latest_s

    def burst(self, klass, tenant, tokens, count):
        for _ in range(count):
            self.arrive(klass, tenant, tokens)

    def end(self, which, well):
        running = self.of("running")
        if running:
            running[which % len(running)].end(well=well)

    def leave(self, which):
        """The client of any request goes, whatever has become of it."""
        if not self.jobs:
            return
        job = self.jobs[which % len(self.jobs)]
        assert self.line.leave(job) is (job.state == "waiting")
        if job.state == "waiting":
            job.state = "left"
        elif job.state == "running":
            job.end(well=False)

    def look(self):
        self.line.look()
        assert all(job.due_s > self.now for job in self.of("waiting"))
        if not self.usable():
            assert not self.of("waiting")

    def limit(self, which, limit):
        self.hosts[which % len(self.hosts)].set(limit)
        self.line.measure()
        self.line.pump()

    def reach(self, which, usable):
        self.hosts[which % len(self.hosts)].usable = usable
        self.line.look()

    def serve(self, serves_all):
        self.serves_all = serves_all
        self.line.look()

    def wait(self, seconds):
        self.now += seconds

    # what holds

    def check_permits(self):
        running = self.of("running")
        for host in self.hosts:
            own = [job for job in running if job.host is host]
            assert host.in_flight == len(own) >= 0
            assert host.tokens == sum(job.tokens for job in own)
        for name, state in self.line.states.items():
            assert state.in_flight == sum(job.klass.name == name for job in running)
        waiting = self.of("waiting")
        assert {id(entry.item) for entry in self.line.queue} == {id(job) for job in waiting}
        assert self.line.queue.count == len(waiting) <= OPTIONS.queue_requests
        assert self.line.queue.bytes == sum(job.size for job in waiting)
        assert self.grants == len(running) + len(self.of("ended"))

    def first_of_firm(self):
        """Those that wait and yield to nobody, the first of each tenant."""
        first = {}
        for entry in self.line.queue:
            if entry.klass.name in FIRM:
                key = entry.klass.name, entry.tenant
                first[key] = min(first.get(key, entry), entry)
        return [entry.item for entry in first.values()]

    def check_no_room_stands_empty(self):
        for job in self.first_of_firm():
            assert not any(host.is_open_to(job) for host in self.usable())

    def close(self):
        """All that runs ends, and everybody who waits leaves or is served."""
        while self.of("running"):
            self.of("running")[0].end(well=True)
            self.check_permits()
        for job in self.of("waiting"):
            assert self.line.leave(job)
            job.state = "left"
        self.check_permits()
        assert not any(host.in_flight or host.tokens or host.jobs for host in self.hosts)
        assert not any(state.in_flight for state in self.line.states.values())
        assert (len(self.line.queue), self.line.queue.bytes, self.line._entries) == (0, 0, {})


LIMITS = st.sampled_from([1.0, 1.0, 1.5, 2.0, 2.0, 3.7, 5.0, 16.0, 32.0, None])
WHICH = st.integers(0, 30)
TENANTS, TOKENS = st.sampled_from("xyz"), st.sampled_from([10, 50, 400])
CLASS_NAMES = st.sampled_from(["standard", *BY_NAME])
ARRIVE = st.tuples(st.just("arrive"), CLASS_NAMES, TENANTS, TOKENS, st.integers(0, 9).map(bool))
BURST = st.tuples(st.just("burst"), CLASS_NAMES, TENANTS, TOKENS, st.integers(2, 9))
STEP = st.one_of(
    ARRIVE,
    ARRIVE,
    BURST,
    st.tuples(st.just("end"), WHICH, st.booleans()),
    st.tuples(st.just("leave"), WHICH),
    st.tuples(st.just("look")),
    st.tuples(st.just("limit"), WHICH, LIMITS),
    st.tuples(st.just("wait"), st.sampled_from([0.001, 0.05, 0.3, 1.0, 20.0, 70.0])),
)
RARE = st.one_of(
    st.tuples(st.just("reach"), WHICH, st.booleans()),
    st.tuples(st.just("reach"), WHICH, st.just(True)),
    st.tuples(st.just("serve"), st.booleans()),
)
STEPS = st.lists(st.one_of(*[STEP] * 9, RARE), min_size=20, max_size=80)


def play(run, steps):
    for name, *arguments in steps:
        getattr(run, name)(*arguments)
        run.check_permits()
        run.check_no_room_stands_empty()
    run.look()
    run.check_permits()
    run.close()


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.lists(LIMITS, min_size=1, max_size=3), STEPS)
def test_permits_never_leak_and_no_room_stands_empty(bounds, steps):
    run = Run([Host(limit) for limit in bounds])
    play(run, steps)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.lists(st.tuples(LIMITS, st.sampled_from([None, 100, 500])), min_size=1, max_size=3), STEPS)
def test_the_same_where_the_memory_of_some_bounds_what_they_may_have(bounds, steps):
    run = Run([Host(limit, kv_tokens) for limit, kv_tokens in bounds])
    play(run, steps)
