"""Known response surfaces to search: functions, not servers. Shaped as engines are; each with as much memory that three
tenths of its points run out of it, and as flat that a given share of them lies within 3 % of the best.
"""

import math
from dataclasses import dataclass, field
from itertools import product

import numpy as np

from tidegate.control.tuner.space import Point, Setting, Settings, Space, anything

NOISE = 0.05
OUT_OF_MEMORY = 0.3
NEAR = 0.97


@dataclass
class Surface:
    name: str
    space: Space
    truth: dict[Point, float] = field(repr=False)
    """Queries/s of every point that memory suffices for."""

    @property
    def best(self) -> float:
        return max(self.truth.values())

    def near(self, point: Point) -> bool:
        return self.truth.get(point, 0.0) >= NEAR * self.best

    def measured(self, settings: Settings, random: np.random.Generator) -> float | None:
        """With noise, as a server would give it; None when out of memory."""
        true = self.truth.get(self.space.point(settings))
        return None if true is None else true * (1 + NOISE * random.standard_normal())


def shaped(name, settings, speed, need, *, good, allowed=anything):
    """A surface from what is fast and what takes memory, both functions of settings; `good` is the share near the best."""
    space = Space(settings, allowed)
    points = [p for p in product(*(range(len(one.values)) for one in settings)) if space.allows(p)]
    needs = np.array([need(space.at(point)) for point in points])
    limit = np.quantile(needs, 1 - OUT_OF_MEMORY)
    fits = [(point, speed(space.at(point))) for point, needed in zip(points, needs, strict=True) if needed <= limit]
    speeds = np.array([value for _, value in fits])
    loss = -np.log(speeds / speeds.max())
    edge, bound = np.quantile(loss, good * len(points) / len(fits)), -math.log(NEAR)
    values = 100 * np.exp(-(loss**2) / (loss + edge**2 / bound - edge))  # near the best, what is gained levels off
    return Surface(name, space, {point: float(value) for (point, _), value in zip(fits, values, strict=True)})


def hill(at, best, width, floor=0.15):
    """A bump over logarithms: 1 at `best`, `floor` far away."""
    return floor + (1 - floor) * math.exp(-0.5 * (math.log2(at / best) / width) ** 2)


def llamacpp():
    """A processor: slots rise and fall, batch and micro-batch depend on each other, caches cost memory or time."""

    def speed(at):
        best_micro = 128 * (at["threads"] / 2) ** 0.5 * (at["slots"] / 4) ** 0.3
        return (
            hill(at["slots"], 11, 1.3)
            * hill(at["micro_batch"], best_micro, 1.4)
            * hill(at["batch"], at["micro_batch"] * 3, 1.6)
            * hill(at["threads"], 4, 0.8)
            * {"f16": 1.0, "q8_0": 0.93, "q4_0": 0.78}[at["cache"]]
            * {512: 0.62, 1024: 0.88, 2048: 1.0, 4096: 0.97}[at["context"]]
        )

    def need(at):
        bits = {"f16": 16, "q8_0": 8.5, "q4_0": 4.5}[at["cache"]]
        return at["slots"] * at["context"] * bits / 8 * 12e-6 + at["batch"] * at["micro_batch"] * 1.2e-6

    settings = [
        Setting("slots", (1, 2, 3, 4, 6, 8, 12, 16, 24, 32), memory=True),
        Setting("batch", (64, 128, 256, 512, 1024, 2048), memory=True),
        Setting("micro_batch", (32, 64, 128, 256, 512, 1024), memory=True),
        Setting("threads", (1, 2, 3, 4, 6, 8)),
        Setting("cache", ("f16", "q8_0", "q4_0"), ordered=False),
        Setting("context", (512, 1024, 2048, 4096), memory=True),
    ]
    return shaped("llama.cpp", settings, speed, need, good=0.01, allowed=lambda at: at["micro_batch"] <= at["batch"])


def vllm():
    """A GPU: more sequences until the cache thrashes, a step's tokens against the time to the first token."""

    def speed(at):
        cache = (at["memory_share"] - 0.25) * (1.6 if at["kv"] == "fp8" else 1.0)
        best = 4096 if at["chunked"] == "on" else 9000
        return (
            at["sequences"]
            / (at["sequences"] + 90)
            / (1 + (at["sequences"] / (620 * cache)) ** 3)
            * hill(at["batched_tokens"], best * (at["sequences"] / 192) ** 0.4, 1.7)
            * hill(at["block"], 24, 1.8)
            * (1.0 if at["chunked"] == "on" else 0.93)
            * (0.94 if at["kv"] == "fp8" else 1.0)
        )

    def need(at):
        return at["batched_tokens"] * 6e-6 + at["sequences"] * 1.2e-4 + at["memory_share"]

    settings = [
        Setting("sequences", (8, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 1024), memory=True),
        Setting("batched_tokens", (512, 1024, 2048, 4096, 8192, 16384, 32768), memory=True),
        Setting("block", (8, 16, 32, 64, 128)),
        Setting("memory_share", (0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95), memory=True),
        Setting("chunked", ("on", "off"), ordered=False),
        Setting("kv", ("auto", "fp8"), ordered=False),
    ]
    return shaped("vLLM", settings, speed, need, good=0.013)


def cliff():
    """A latency bound: goodput falls off a cliff just beyond its best, on a ridge that runs askew."""

    def speed(at):
        step = 0.02 * at["sequences"] ** 0.6 + at["batched_tokens"] / 20_000
        return (
            at["sequences"]
            / (at["sequences"] + 30)
            * (at["batched_tokens"] / (at["batched_tokens"] + 900))
            / (1 + math.exp((step - 0.42) / 0.05))
            * hill(at["interval"], 2.6, 1.5)
            * hill(at["threads"], 5, 1.3)
            * hill(at["block"], 40, 1.6)
            * {"fcfs": 1.0, "priority": 0.96, "longest": 0.8}[at["policy"]]
        )

    def need(at):
        return at["sequences"] * at["block"] ** 0.5 * 0.6 + at["batched_tokens"] * 0.03

    settings = [
        Setting("sequences", (4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256), memory=True),
        Setting("batched_tokens", (256, 512, 1024, 2048, 4096, 8192, 16384), memory=True),
        Setting("block", (16, 32, 64, 128), memory=True),
        Setting("interval", (1, 2, 4, 8)),
        Setting("threads", (1, 2, 4, 8, 16)),
        Setting("policy", ("fcfs", "priority", "longest"), ordered=False),
    ]
    return shaped("cliff", settings, speed, need, good=0.013)


def two_hills():
    """A good region of many small batches, and a better one of few large ones, far from each other."""

    def speed(at):
        many = 0.8 * hill(at["slots"], 24, 1.0, 0.1) * hill(at["batch"], 256, 1.5)
        few = hill(at["slots"], 5, 0.9, 0.1) * hill(at["batch"], 2048, 1.2)
        return (
            max(many, few)
            * hill(at["threads"], 7, 1.2)
            * hill(at["block"], 32, 1.6)
            * (1.0 if at["attention"] == "flash" else 0.9)
            * (1.0 if at["cache"] == "f16" else 0.95)
        )

    def need(at):
        bits = 1.0 if at["cache"] == "f16" else 0.55
        return at["slots"] * bits * 0.028 + at["batch"] * (2e-4 if at["attention"] == "flash" else 3e-4)

    settings = [
        Setting("slots", (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64), memory=True),
        Setting("batch", (64, 128, 256, 512, 1024, 2048, 4096), memory=True),
        Setting("threads", (1, 2, 3, 4, 6, 8, 12, 16)),
        Setting("block", (8, 16, 32, 64)),
        Setting("attention", ("flash", "plain"), ordered=False),
        Setting("cache", ("f16", "q8_0"), ordered=False),
    ]
    return shaped("two hills", settings, speed, need, good=0.013)


def drawn(seed):
    """A surface nobody shaped by hand: a bump, settings that depend on each other, what takes memory, all drawn."""
    random = np.random.default_rng(seed)
    sizes = [int(random.integers(4, 9)) for _ in range(5)]
    settings = [Setting(f"setting {number}", tuple(range(size)), memory=True) for number, size in enumerate(sizes)]
    settings.append(Setting("kind", ("a", "b", "c"), ordered=False))
    best, width = random.uniform(0.1, 0.9, 5), random.uniform(0.2, 0.6, 5)
    lean = np.eye(5)
    for _ in range(3):
        one, two = random.permutation(5)[:2]
        lean[one, two] += random.uniform(-0.5, 0.5)
    factors = dict(zip("abc", (1.0, random.uniform(0.85, 0.97), random.uniform(0.6, 0.9)), strict=True))
    weights = random.uniform(0, 1, 5) ** 2
    good = random.uniform(0.007, 0.012)

    def places(at):
        return np.array([at[one.name] / (len(one.values) - 1) for one in settings[:-1]])

    def speed(at):
        bump = math.exp(-0.5 * float(np.sum((lean @ (places(at) - best) / width) ** 2)))
        return (0.05 + 0.95 * bump) * factors[at["kind"]]

    return shaped(f"drawn {seed}", settings, speed, lambda at: float(weights @ places(at)), good=good)
