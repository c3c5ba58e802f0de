"""Fuzz for as long as one likes: `scripts/fuzz [--inputs 1000000] [--seed 1] [--side requests]`.

Prints what was run on, what came out, and how many inputs a second; exits 1 at the first input that is treated wrongly,
with what repeats it.
"""

import argparse
import platform
import sys
import time
from collections import Counter
from importlib.metadata import version
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from fuzz import fields, requests, responses, storm

SIDES = {
    "requests": (requests, 0.55),
    "responses": (responses, 0.25),
    "bodies": (fields, 0.17),
    "storms": (storm, 0.03),
}
"""What there is to fuzz, and its share of the inputs."""
SLICE = 2000
"""Inputs of one seed."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--side", choices=SIDES)
    asked = parser.parse_args()
    print(f"scripts/fuzz {' '.join(sys.argv[1:])}")
    print(
        f"{platform.machine()}, Python {platform.python_version()}, h11 {version('h11')}, httptools {version('httptools')}"
    )
    for name, (side, share) in SIDES.items():
        if asked.side not in {None, name}:
            continue
        inputs = asked.inputs if asked.side else round(asked.inputs * share)
        seen: Counter[str] = Counter()
        began = time.monotonic()
        for number, start in enumerate(range(0, inputs, SLICE)):
            try:
                side.run(asked.seed + number, min(SLICE, inputs - start), seen)
            except AssertionError as error:
                print(f"{name}: {error}")
                return 1
        took = time.monotonic() - began
        told = ", ".join(f"{kind} {count:,}" for kind, count in seen.most_common())
        print(f"{name}: {inputs:,} inputs in {took:.0f} s, no fault ({told})", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
