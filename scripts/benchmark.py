"""What the gateway costs: `scripts/bench [--rounds 7] [--seconds 3] [--crowd] [--memory]`.

Without a mode: CPU for a JSON request and for a streamed event beside a bare proxy, in paired rounds, with a key checked,
usage recorded and the access log written. `--crowd`: 100 streams alone, and with 10,000 idle connections and 200 slow
readers beside them, in turns. `--memory`: what 2,000 streams at once take. Everything is on loopback.
"""

import argparse
import asyncio
import os
import platform
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

import uvloop

import tidegate
from load.clients import Log, askers, chat_request, idlers, quantile, raise_open_files, slow_readers
from load.costs import pairs, spread, stream_times
from load.programs import Program, canned_engine, fake_engine, gateway, quiet

IDLE, SLOW, NORMAL, STREAMS = 10_000, 200, 100, 2000
FIRST_WRITE_S = 3.0
"""After its first requests a gateway without keys makes its database, once."""


def processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


async def costs(folder: Path, rounds: int, seconds: float) -> None:
    found = await pairs(folder, rounds=rounds, seconds=seconds)
    print("round    JSON us: bare  gateway  ratio     event us: bare  gateway  ratio")
    for number, pair in enumerate(found, 1):
        bare, ours = pair.bare, pair.gateway
        print(
            f"{number:5} {bare.request_us:15.1f} {ours.request_us:8.1f} {pair.request_ratio:6.2f}"
            f" {bare.event_us:18.1f} {ours.event_us:8.1f} {pair.event_ratio:6.2f}"
        )
    print(f"JSON:  {spread([pair.request_ratio for pair in found])} times a bare proxy")
    print(f"event: {spread([pair.event_ratio for pair in found])} times a bare proxy")


async def crowd(folder: Path, rounds: int) -> None:
    """The crowd comes and goes; the 100 streams are timed each time."""
    refusal = raise_open_files(IDLE + 500)
    if refusal:
        raise SystemExit(refusal)
    request = chat_request(stream=True)
    alone, crowded = Log(), Log()
    ratios: list[tuple[float, ...]] = []
    print("99th percentiles in ms, alone and crowded: first event, gap between events; CPU of the gateway in s")
    with fake_engine(folder, "--tokens", "64", "--gap-ms", "10") as engine, gateway(folder, engine) as front:
        await stream_times(front.port, NORMAL, request, times=1)
        await asyncio.sleep(FIRST_WRITE_S)
        for _ in range(rounds):
            one = await _timed(front, request, alone)
            idle = await idlers(front.port, IDLE)
            slow = slow_readers(front.port, SLOW, chat_request(stream=True, marks="[[fault:huge_event=1500000]]"))
            await quiet(front)
            other = await _timed(front, request, crowded)
            memory = front.rss_mib
            for idler in idle:
                idler.transport.abort()
            for sock in slow:
                sock.close()
            await quiet(front)
            both = list(zip(one, other, strict=True))
            ratios.append(tuple(after / before for before, after in both))
            print(
                "   ".join(f"{before:6.2f} {after:6.2f}" for before, after in both) + f"   {memory:.0f} MiB", flush=True
            )
    print(f"{alone.answers + crowded.answers} streams, {alone.bad + crowded.bad} bad")
    for number, name in enumerate(("first event", "gap")):
        before, after = (1e3 * quantile((log.first_s, log.gaps_s)[number], 0.99) for log in (alone, crowded))
        ratio = median(row[number] for row in ratios)
        print(f"{name}: {ratio:.2f} times alone (median of {rounds}); of all together {before:.2f} and {after:.2f} ms")


async def _timed(front: Program, request: bytes, whole: Log) -> tuple[float, float, float]:
    """99th percentiles of the normal streams in ms, first event and gap, and the gateway's CPU; added to `whole`."""
    cpu_s = front.cpu_s
    log, first_s, gap_s = await stream_times(front.port, NORMAL, request, times=6)
    whole.answers, whole.bad = whole.answers + log.answers, whole.bad + log.bad
    whole.first_s += log.first_s
    whole.gaps_s += log.gaps_s
    return 1e3 * first_s, 1e3 * gap_s, front.cpu_s - cpu_s


async def memory(folder: Path) -> None:
    with canned_engine(folder, tokens=64, gap_ms=250) as engine, gateway(folder, engine) as front:
        before, log = front.rss_mib, Log()
        streams = await askers(front.port, STREAMS, chat_request(stream=True), log, over_s=8, times=1)
        most = before
        everyone = asyncio.gather(*(asker.ended for asker in streams))
        while not everyone.done():
            most = max(most, front.rss_mib)
            await asyncio.sleep(0.1)
        for asker in streams:
            asker.stop()
        print(f"{STREAMS} streams: {before:.1f} MiB before, {most:.1f} at most; {log.answers} whole, {log.bad} bad")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--crowd", action="store_true")
    parser.add_argument("--memory", action="store_true")
    asked = parser.parse_args()
    print(f"scripts/bench {' '.join(sys.argv[1:])}   {time.strftime('%Y-%m-%d %H:%M')}")
    print(
        f"{processor()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; Linux {platform.release()}, "
        f"Python {platform.python_version()}, uvloop {version('uvloop')}, httptools {version('httptools')}, "
        f"tidegate {tidegate.__version__}",
        flush=True,
    )
    with tempfile.TemporaryDirectory(prefix="tg-bench-") as name:
        folder = Path(name)
        if asked.crowd:
            uvloop.run(crowd(folder, min(asked.rounds, 5)))
        elif asked.memory:
            uvloop.run(memory(folder))
        else:
            uvloop.run(costs(folder, asked.rounds, asked.seconds))


if __name__ == "__main__":
    main()
