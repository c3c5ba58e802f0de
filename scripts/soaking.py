"""A long load while engines are killed: `scripts/soak [--minutes 10] [--llamacpp]`.

`tidegate up` with three fake engines (or two of llama.cpp) on loopback, at about 70 % load, streams and JSON, and an
engine killed with SIGKILL every 20 s or so, at times two at once. Prints what was lost, and what the gateway's memory and
open files came to; exits 1 if anything was lost or grew.
"""

import argparse
import asyncio
import platform
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

import tidegate
from load.soak import Soak

MIB, FILES = 16.0, 24
"""Growth that is none: allocators and pools breathe."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--llamacpp", action="store_true", help="two llama.cpp engines with the demo model")
    asked = parser.parse_args()
    print(f"scripts/soak {' '.join(sys.argv[1:])}   {time.strftime('%Y-%m-%d %H:%M:%S')}")
    print(f"{platform.machine()}, Python {platform.python_version()}, tidegate {tidegate.__version__}", flush=True)
    with tempfile.TemporaryDirectory(prefix="tg-soak-") as folder:
        soak = Soak(Path(folder), llamacpp=asked.llamacpp, seed=asked.seed)
        result = asyncio.run(soak.run(asked.minutes * 60))
        log = Path(folder, "up.txt").read_text()
    mib, files = result.growth()
    first, last = result.samples[0], result.samples[-1]
    print(f"{soak.clients} clients, {result.kills} engines killed")
    print(f"answers: {result.whole:,} whole, {len(result.lost)} lost")
    print(
        f"gateway: {first.rss_mib:.1f} MiB at first, {last.rss_mib:.1f} at last; from the second quarter to the last {mib:+.1f}"
    )
    print(f"open files: {first.open_files} at first, {last.open_files} at last; {files:+.0f}")
    for one in result.lost[:20]:
        print("lost", one)
    grew = mib > MIB or files > FILES
    if result.lost or grew:
        print(log[-6000:])
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
