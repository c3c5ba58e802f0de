"""The policies on simulated time: engines that compute in steps, clients that come whatever happens, gateways.

An engine is vLLM's shape: of those that wait it takes in as many as it has slots, and a step gives a token to each that
runs. A step takes `step_ms`, and some more for each sequence and each prompt token, as in the fake engine.
"""

import heapq
import itertools
import math
import random
from collections import deque
from dataclasses import dataclass, field

from tidegate.errors import RequestError
from tidegate.gateway import limits
from tidegate.gateway.dispatch import Line, holds_up
from tidegate.gateway.router import least_work_of_two
from tidegate.types import CLASSES, LimitOptions, Load


class World:
    """Simulated time."""

    def __init__(self):
        self.now = 0.0
        self._events = []
        self._order = itertools.count()

    def at(self, time, act):
        heapq.heappush(self._events, (time, next(self._order), act))

    def later(self, seconds, act):
        self.at(self.now + seconds, act)

    def run(self, until):
        while self._events and self._events[0][0] <= until:
            self.now, _, act = heapq.heappop(self._events)
            act()
        self.now = until


@dataclass
class Request:
    """What a client asks, and what became of it."""

    kind: str
    at: float
    tokens: int
    prompt: int = 17
    left: int = 0
    first: float | None = None
    end: float | None = None
    refused: float | None = None
    """`Retry-After`, where it was refused."""
    gone: bool = False
    returns: int = 0
    first_return: bool | None = None


class Engine:
    """One engine with continuous batching."""

    def __init__(self, world, *, slots=16, step_ms=25.0, per_seq_ms=0.1, per_prompt_token_ms=0.25):
        self.world, self.slots = world, slots
        self.step_ms, self.per_seq_ms, self.per_prompt_token_ms = step_ms, per_seq_ms, per_prompt_token_ms
        self.waiting, self.running = deque(), []
        self.made = 0
        self.stepping = False
        self.alive = True

    def submit(self, request, done):
        request.left = request.tokens
        self.waiting.append((request, done))
        self._begin()

    def _begin(self):
        if self.stepping:
            return
        self.running = [pair for pair in self.running if not pair[0].gone]
        prompt = 0
        while self.waiting and len(self.running) < self.slots:
            pair = self.waiting.popleft()
            if not pair[0].gone:
                prompt += pair[0].prompt
                self.running.append(pair)
        if not self.running:
            return
        self.stepping = True
        step = self.step_ms + self.per_seq_ms * len(self.running) + self.per_prompt_token_ms * prompt
        self.world.later(step / 1e3, self._step)

    def _step(self):
        ended = []
        for request, done in self.running:
            request.left -= 1
            self.made += 1
            if request.first is None:
                request.first = self.world.now
            if not request.left:
                request.end = self.world.now
                ended.append(done)
        self.running = [pair for pair in self.running if pair[0].left]
        self.stepping = False
        for done in ended:  # the answers' ends reach the gateway while the next step has begun
            self.world.later(0.0005, done)
        self._begin()

    def load(self):
        return Load(running=len(self.running), waiting=len(self.waiting), kv_usage=len(self.running) / self.slots)


def _part(limit, share):
    return limit if share == 1 else math.ceil(limit / share)


class SimulatedReplica:
    """A gateway's view of an engine."""

    def __init__(self, engine, options, told=None, share=1):
        self.engine, self.pool, self._options, self._share = engine, "default", options, share
        self.in_flight = self.tokens = 0
        self.jobs = {}
        self.kv_tokens = None
        self.state = limits.begin(options, told)
        self.most = 0
        self.set()

    def set(self):
        self.limit = None if self.state.limit is None else max(1.0, _part(self.state.limit, self._share))
        self.room = float("inf") if self.limit is None else int(self.limit)

    def look(self, now, wait_s=0.0):
        self.state = limits.after(
            self.state,
            self.engine.load(),
            self._options,
            in_flight=self.most,
            wait_s=wait_s,
            now=now,
            reading=any(holds_up(job, now) for job in self.jobs),
            alone=self._share == 1,
        )
        self.most = self.in_flight
        self.set()


class SimulatedJob:
    def __init__(self, gateway, request, klass, tenant="t"):
        self.gateway, self.request, self.klass, self.tenant = gateway, request, klass, tenant
        self.size, self.tokens, self.granted_s = max(500, 4 * request.prompt), request.prompt + request.tokens, 0.0

    @property
    def reading(self):
        return self.request.first is None

    @property
    def begun_s(self):
        return None if self.klass.name == "batch" else self.request.first or 0.0

    def candidates(self):
        return self.gateway.replicas

    def pick(self, hosts):
        return least_work_of_two(hosts, self.gateway.random.random)

    def start(self, host):
        self.replica = host
        host.jobs[self] = None
        host.in_flight += 1
        host.most = max(host.most, host.in_flight)
        if host.limit is not None and host.in_flight >= host.limit:
            self.gateway.wake(host)
        self.gateway.world.later(0.0005, lambda: host.engine.submit(self.request, self.end))

    def end(self):
        self.replica.in_flight -= 1
        del self.replica.jobs[self]
        self.gateway.line.states[self.klass.name].began(self.request.first - self.granted_s)
        self.gateway.line.ended(self, well=not self.request.gone)

    def refuse(self, error):
        self.gateway.refused(self, error)


class Gateway:
    """One gateway: the real line, limiter and router."""

    def __init__(self, world, engines, *, classes=CLASSES, options=None, seed=1, told=None, share=1, on_refused=None):
        self.world, self.random = world, random.Random(seed)
        self.options = options or LimitOptions()
        self.replicas = [SimulatedReplica(engine, self.options, told, share) for engine in engines]
        self.classes = {one.name: one for one in classes}
        self.line = Line(lambda: self.replicas, lambda: world.now)
        self.line.apply(classes, (), self.options)
        self.on_refused = on_refused
        self._woken = {}
        self.limits = []
        world.later(0.0, self._look)
        world.later(0.05, self._tend)

    def _look(self):
        for replica in self.replicas:
            replica.look(self.world.now)
        self.limits.append((self.world.now, [replica.limit for replica in self.replicas]))
        self.line.look()
        self.world.later(1.0, self._look)

    def _tend(self):
        for replica in self.replicas:
            if replica.limit is not None and replica.in_flight >= 0.6 * replica.limit:
                self.wake(replica)
        self.line.look()
        self.world.later(0.05, self._tend)

    def wake(self, replica):
        if replica.state.slots is None and self._woken.get(id(replica), -1.0) < self.world.now - 0.05:
            self._woken[id(replica)] = self.world.now

            def look():
                replica.look(self.world.now)
                self.line.measure()
                self.line.pump()

            self.world.later(0.003, look)

    def ask(self, request, klass=None, tenant="t"):
        job = SimulatedJob(self, request, self.classes[klass or request.kind], tenant)
        try:
            self.line.submit(job)
        except RequestError as error:
            self.refused(job, error)
        return job

    def refused(self, job, error):
        job.request.refused = error.retry_after_s
        if self.on_refused is not None:
            self.on_refused(job.request)


class LeastConnections:
    """nginx's least_conn: every request goes at once to the engine that has fewest."""

    def __init__(self, world, engines):
        self.world, self.counts = world, dict.fromkeys(engines, 0)

    def ask(self, request, klass=None):
        engine = min(self.counts, key=self.counts.get)
        self.counts[engine] += 1

        def done():
            self.counts[engine] -= 1

        engine.submit(request, done)


@dataclass
class Mix:
    """What arrives: shares of kinds, and their answers' tokens."""

    shares: dict = field(default_factory=lambda: {"interactive": 0.7, "batch": 0.3})
    tokens: dict = field(default_factory=lambda: {"interactive": 32, "batch": 128})
    prompts: dict = field(default_factory=dict)

    def capacity(self, engines, slots=16, step_ms=25.0, per_seq_ms=0.1, prefill_ms=4.25):
        """Requests a second that so many engines serve at most."""
        step = (step_ms + per_seq_ms * slots) / slots
        return engines * 1e3 / sum(share * (self.tokens[k] * step + prefill_ms) for k, share in self.shares.items())


def arrive(world, ask, mix, rate, *, begin, end, rng):
    """Poisson arrivals; the requests, as they become."""
    requests = []
    time = begin
    while True:
        time += rng.expovariate(rate)
        if time >= end:
            return requests
        kind = rng.choices(list(mix.shares), list(mix.shares.values()))[0]
        request = Request(kind, time, mix.tokens[kind], mix.prompts.get(kind, 17))
        requests.append(request)
        world.at(time, lambda request=request: ask(request))


def in_time(requests, kind="interactive", bound=0.5):
    """The share of a kind that had its first token in time, and all of its answer."""
    own = [one for one in requests if one.kind == kind]
    good = [one for one in own if one.end is not None and one.first - one.at <= bound]
    return len(good) / max(1, len(own))
