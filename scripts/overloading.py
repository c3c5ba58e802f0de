"""What too many requests do: `scripts/overload [--fronts nginx tidegate] [--load 0.7 1 2 4] [--seconds 20]`.

Two engines with continuous batching (`tidegate fake-engine --batching`, 16 slots, steps of 25 ms). Requests come at
their times whatever the answers do, 70 % interactive (streamed, 32 tokens), 30 % batch (128 tokens), at multiples of what
the engines can serve. Latency counts from the time at which a request should have been sent.

Without a mode: a row for each front and load. `--batch-only`: the same of batch work alone. `--step`: half the load, three
times, half again, second by second. `--long`: short chats with and without prompts of 16,384 tokens, in turns. `--real`:
rows of two llama.cpp engines with the demo model. `--json FILE` keeps the figures, `--svg FILE` draws them; `--draw FILE...`
runs nothing, and shows the medians of what earlier runs kept.
"""

import argparse
import asyncio
import contextlib
import json
import os
import platform
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

import uvloop
from benchmark import processor

import tidegate
from load import fronts, long_prompts, real_engines, steps
from load.clients import raise_open_files
from load.overload import Load, Outcome, Phase, one, plan, row
from load.overload_plots import Row, draw_loads, draw_steps, medians
from load.programs import Program

BOUNDS_S = (1.0, 1.1, 1.25, 1.5, 2.0)
WARM_UP_S, CALIBRATE_S = 4.0, 12.0


class Bench:
    """One run of the script."""

    def __init__(self, asked: argparse.Namespace, folder: Path) -> None:
        self.asked, self.folder = asked, folder
        self.rows: list[Row] = []
        self.steps: dict[str, Row] = {}

    async def loads(self) -> None:
        """Rows of fake engines, a fresh set of engines and a fresh front for each."""
        shares = {"batch": 1.0} if self.asked.batch_only else fronts.MIX
        for load in self.asked.load:
            for name in self.asked.fronts:
                with (
                    fronts.fake_engines(self.folder, 1 if name == "direct" else 2) as engines,
                    fronts.front(name, self.folder, engines) as front,
                ):
                    rate = load * fronts.capacity(len(engines), shares)
                    await self._row(
                        name,
                        load,
                        Phase(rate, self.asked.seconds, shares),
                        front,
                        engines=engines,
                        seed=self.asked.seed,
                    )

    async def _row(
        self,
        name: str,
        load: float,
        phase: Phase,
        front: Program,
        *,
        engines: Sequence[Program],
        seed: int,
        key: str = "",
    ) -> None:
        requests = fronts.requests() if not key else real_engines.requests()
        before = fronts.tokens_made(engines, key)
        arriving = Load(front.port, requests)
        await arriving.arrive(plan([phase], seed), phase.seconds)
        made = fronts.tokens_made(engines, key) - before
        outcomes = await arriving.finish()
        bounds = sorted({*BOUNDS_S, self.asked.whole_s})
        figures = row(outcomes, phase.seconds, target_s=self.asked.target_ms / 1e3, bounds_s=bounds)
        self.rows.append({"front": name, "load": load, "tokens_per_s": made / phase.seconds, **figures})
        print(self.line(self.rows[-1]), flush=True)

    async def real(self) -> None:
        """Rows of real engines; what they can serve is measured first."""
        with real_engines.llamacpp_engines(self.folder) as (engines, key_file):
            key = key_file.read_text()
            rate = self.asked.rate
            if not rate:
                with fronts.front(self.asked.fronts[0], self.folder, engines, key_file) as front:
                    await calibrate(front.port, WARM_UP_S)
                    rate = await calibrate(front.port, CALIBRATE_S)
            print(f"1 x is {rate:.2f} requests/s: what is served with {2 * real_engines.SLOTS} at once")
            for load in self.asked.load:
                phase = Phase(load * rate, self.asked.seconds, fronts.MIX)
                for number in range(self.asked.rounds):
                    for name in self.asked.fronts:
                        with fronts.front(name, self.folder, engines, key_file) as front:
                            await real_engines.idle(engines, key)  # a gateway that starts has engines checked
                            await self._row(
                                name, load, phase, front, engines=engines, key=key, seed=self.asked.seed + number
                            )

    async def step(self) -> None:
        """Half the load, three times, and half again."""
        rate = fronts.capacity(2)
        phases = [
            Phase(load * rate, seconds, fronts.MIX) for load, seconds in zip(steps.LOADS, steps.SECONDS, strict=True)
        ]
        down_s, target_s = sum(steps.SECONDS[:2]), self.asked.target_ms / 1e3
        for name in self.asked.fronts:
            samples = steps.Samples()
            with fronts.fake_engines(self.folder) as engines, fronts.front(name, self.folder, engines) as front:
                arriving = Load(front.port, fronts.requests(), come_again=self.asked.come_again)
                reading = asyncio.create_task(steps.sample(front, samples)) if name == "tidegate" else None
                await arriving.arrive(plan(phases, self.asked.seed), sum(steps.SECONDS))
                if reading is not None:
                    reading.cancel()
                    with contextlib.suppress(asyncio.CancelledError):
                        await reading
                outcomes = await arriving.finish()
            rows = steps.per_second(outcomes, sum(steps.SECONDS))
            recovered = steps.recovery_s(rows, down_s, target_s)
            self.steps[name] = {"seconds": rows, "recovery_s": recovered, "samples": vars(samples)}
            within = "not before the end" if recovered is None else f"within {recovered:.0f} s"
            after = sum(o.refused and o.kind == "interactive" and o.at_s >= down_s for o in outcomes)
            print(
                f"{name}: in time again {within}, {after} interactive refused since; {sum(o.fault for o in outcomes)} faults"
            )
            if self.asked.come_again:
                print(*(steps.returns(outcomes, kind, down_s) for kind in fronts.MIX), sep="\n")
            for replica, limits in samples.limits.items():
                held = [limit for at, limit in zip(samples.at_s, limits, strict=False) if at >= steps.SECONDS[0] + 6]
                print(f"  {replica}: limit {min(held):g} to {max(held):g} from 6 s after the rise on")

    async def long(self) -> None:
        """Chats without and with long prompts, in turns, before one front each."""
        for name in self.asked.fronts:
            alone, beside = [], []
            with fronts.fake_engines(self.folder) as engines, fronts.front(name, self.folder, engines) as front:
                for number in range(self.asked.pairs):
                    seed = self.asked.seed + number
                    alone.append(await long_prompts.span(front.port, self.asked.seconds, seed, longs=False))
                    beside.append(await long_prompts.span(front.port, self.asked.seconds, seed, longs=True))
                    pair = (long_prompts.p99_s(alone[-1:]), long_prompts.p99_s(beside[-1:]))
                    print(f"{name}, pair {number + 1}: p99 {1e3 * pair[0]:.0f} ms alone, {1e3 * pair[1]:.0f} ms beside")
            ratio = long_prompts.p99_s(beside) / long_prompts.p99_s(alone)
            self.rows.append({
                "front": name, "chats": sum(len(one.chats_s) for one in beside), "ratio": ratio,
                "alone_p99_s": long_prompts.p99_s(alone), "beside_p99_s": long_prompts.p99_s(beside),
                "longs": sum(one.longs for one in beside), "longs_whole": sum(one.longs_whole for one in beside),
            })  # fmt: skip
            print(json.dumps(self.rows[-1]), flush=True)

    # what is shown

    def line(self, row: Row) -> str:
        bound = self.asked.whole_s
        return (
            f"{row['front']:9} {row['load']:5g} {100 * row['in_time']:8.1f} % {1e3 * row['first_p50_s']:8.0f} "
            f"{1e3 * row['first_p99_s']:8.0f} {row['tokens_per_s']:9.0f} {100 * row[f'over_{bound:g}_s']:8.1f} % "
            f"{row['refused']:6.0f} of {row['requests']:.0f} ({row['refused_interactive']:.0f} interactive) {row['faults']:4.0f}"
        )

    def head(self) -> str:
        return (
            f"{'front':9} {'load':>5} {'in time':>10} {'p50 ms':>8} {'p99 ms':>8} {'tokens/s':>9} "
            f"{f'over {self.asked.whole_s:g} s':>10} refused, faults"
        )


async def calibrate(port: int, seconds: float) -> float:
    """Requests of the mix a second that are served with as many at once as there are slots."""
    requests, rng, done = real_engines.requests(), random.Random(1), 0  # noqa: S311 - draws what clients ask
    begin = time.monotonic()

    async def client() -> None:
        nonlocal done
        while time.monotonic() < begin + seconds:
            kind = rng.choices(list(fronts.MIX), list(fronts.MIX.values()))[0]
            outcome = Outcome(kind, 0.0)
            await one(port, outcome, rng.choice(requests[kind]), time.monotonic())
            if outcome.whole_s is None:
                raise RuntimeError(f"a request failed while nothing else was there: {outcome}")
            done += 1

    await asyncio.gather(*(client() for _ in range(2 * real_engines.SLOTS)))
    return done / (time.monotonic() - begin)


def nginx_version() -> str:
    if not fronts.has_nginx():
        return "no nginx"
    said = subprocess.run(["nginx", "-v"], capture_output=True, text=True, check=False).stderr
    return said.strip().rpartition(": ")[2]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fronts", nargs="+", choices=["direct", "nginx", "tidegate"], default=None)
    parser.add_argument("--load", type=float, nargs="+", default=None)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--target-ms", type=float, default=500)
    parser.add_argument("--whole-s", type=float, default=1.25, help="bound of a whole interactive answer")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--pairs", type=int, default=2, help="with --long")
    parser.add_argument("--rounds", type=int, default=2, help="with --real: of all fronts, one after the other")
    parser.add_argument("--rate", type=float, help="with --real: requests a second that are served, not measured again")
    parser.add_argument(
        "--come-again", action="store_true", help="with --step: who is refused comes again when told to"
    )
    modes = parser.add_mutually_exclusive_group()
    for mode in ("--batch-only", "--step", "--long", "--real"):
        modes.add_argument(mode, action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--draw", type=Path, nargs="+", help="show what earlier runs kept, and run nothing")
    parser.add_argument("--svg", type=Path)
    asked = parser.parse_args()
    asked.fronts = asked.fronts or [name for name in ("nginx", "tidegate") if name != "nginx" or fronts.has_nginx()]
    asked.load = [0.7, 1.0, 2.0, 4.0] if asked.load is None else asked.load
    return asked


def show_again(asked: argparse.Namespace) -> None:
    """Medians and plots of what earlier runs kept."""
    found = [json.loads(file.read_text()) for file in asked.draw]
    note = "; ".join(sorted({one["machine"].partition(", load")[0] + ", " + one["when"].split()[0] for one in found}))
    for one_run in found:
        print(f"{one_run['command']}   {one_run['when']}\n{one_run['machine']}")
    bench = Bench(asked, Path())
    bench.rows = medians([one_row for one_run in found for one_row in one_run["rows"]])
    bench.steps = {name: kept for one_run in found for name, kept in one_run["steps"].items()}
    if bench.rows:
        print(bench.head(), *map(bench.line, bench.rows), sep="\n")
    plot(bench, note)


def plot(bench: Bench, note: str) -> None:
    asked = bench.asked
    if not asked.svg:
        return
    if bench.steps:
        draw_steps(asked.svg, bench.steps, asked.target_ms / 1e3, note)
    elif bench.rows and not asked.long:
        engines = "llama.cpp engines with SmolLM2-135M" if asked.real else "engines with continuous batching"
        title = f"Two {engines}, 70 % interactive, 30 % batch"
        draw_loads(asked.svg, medians(bench.rows), title, asked.target_ms / 1e3, note)


def main() -> None:
    asked = arguments()
    if asked.draw:
        show_again(asked)
        return
    raise_open_files(9000)
    when, command = time.strftime("%Y-%m-%d %H:%M"), f"scripts/overload {' '.join(sys.argv[1:])}"
    machine = (
        f"{processor()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; Linux {platform.release()}, Python "
        f"{platform.python_version()}, uvloop {version('uvloop')}, {nginx_version()}, tidegate {tidegate.__version__}"
    )
    print(f"{command}   {when}\n{machine}", flush=True)
    with tempfile.TemporaryDirectory(prefix="tg-overload-") as name:
        bench = Bench(asked, Path(name))
        modes = (("step", bench.step), ("long", bench.long), ("real", bench.real))
        run = next((act for flag, act in modes if getattr(asked, flag)), bench.loads)
        if run in {bench.loads, bench.real}:
            print(bench.head())
        uvloop.run(run())
    if asked.json:
        found = {"command": command, "when": when, "machine": machine, "rows": bench.rows, "steps": bench.steps}
        asked.json.write_text(json.dumps(found, indent=1))
    plot(bench, f"{processor()}, {os.cpu_count()} cores, {when.split()[0]}")


if __name__ == "__main__":
    main()
