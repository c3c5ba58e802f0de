"""What ERNIE-4.5-0.3B costs on this machine: `scripts/real-shape [--engines vllm,llamacpp] [--tokens 64] [--model FOLDER]`.

Its real shape (361 M parameters, bfloat16, 721 MB) with random weights is written once, to --model (default: a folder that
is thrown away). Each engine is started by `tidegate up` in a data folder of its own; vLLM is the one of the data folder
that $TIDEGATE_TEST_VLLM names, which `scripts/test-vllm` fills. Told are the seconds from its start to its first answer, the
memory of its processes then, and tokens a second of one stream and of eight at once.
"""

import argparse
import os
import platform
import re
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

import httpx

from models.tiny import write_ernie
from tidegate import machine
from up_site import Site

SHAPE = {
    "architectures": ["Ernie4_5ForCausalLM"],
    "model_type": "ernie4_5",
    "torch_dtype": "bfloat16",
    "head_dim": 128,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "max_position_embeddings": 131_072,
    "num_attention_heads": 16,
    "num_hidden_layers": 18,
    "num_key_value_heads": 2,
    "vocab_size": 103_424,
}
POOL = """\
[[model]]
name = "ernie"
source = "{folder}"
[[pool]]
name = "default"
model = "ernie"
engine = "{engine}"
[pool.options]
{options}
"""
OPTIONS = {
    "vllm": 'context_tokens = 4096\nslots = 8\nargs = ["--kv-cache-memory-bytes", "2147483648"]',
    "llamacpp": "context_tokens = 2048\nslots = 8",
}
START_S = 600.0
MANY = 8


@dataclass
class Found:
    """What was measured of one engine."""

    start_s: float
    memory_mib: int
    one: float
    many: float


def measure(engine: str, folder: Path, tokens: int) -> Found:
    site = Site()
    try:
        cache = os.environ.get("TIDEGATE_TEST_VLLM")
        if cache:
            (site.home.path / "engines").symlink_to(Path(cache) / "engines")
        site.settings(POOL.format(folder=folder, engine=engine, options=OPTIONS[engine]))
        up = site.up()
        up.until(lambda: "] INFO ready " in up.text(), START_S)
        told = re.search(r"engine ready .* seconds=([\d.]+) .*engine_memory_mib=(\d+)", up.text())
        if told is None:
            raise SystemExit(f"{engine} did not say how it started:\n{up.text()}")
        with httpx.Client(base_url=site.urls()["api"], trust_env=False, timeout=300) as http:
            whole(http, 4, 0)
            one = rate(http, tokens, [MANY])
            many = rate(http, tokens, range(MANY))
        up.interrupt()
        up.end()
        return Found(float(told[1]), int(told[2]), one, many)
    finally:
        site.close()


def rate(http: httpx.Client, tokens: int, numbers: Sequence[int]) -> float:
    """Tokens a second of as many answers at once, their short prompts included."""
    with ThreadPoolExecutor(len(numbers)) as pool:
        began = time.monotonic()
        counts = list(pool.map(lambda number: whole(http, tokens, number), numbers))
        return sum(counts) / (time.monotonic() - began)


def whole(http: httpx.Client, tokens: int, number: int) -> int:
    answer = http.post("chat/completions", json=asked(tokens, number))
    answer.raise_for_status()
    return int(answer.json()["usage"]["completion_tokens"])


def asked(tokens: int, number: int) -> dict[str, object]:
    content = f"{number}: tell me a story about a river."
    messages = [{"role": "user", "content": content}]
    return {"model": "ernie", "messages": messages, "max_tokens": tokens, "temperature": 0}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engines", default="vllm,llamacpp")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--model", type=Path)
    flags = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="shape-") as scratch:
        folder = flags.model or Path(scratch, "ernie")
        if not (folder / "config.json").exists():
            write_ernie(folder, dtype="bfloat16", **SHAPE)
        print(
            f"{platform.platform()}, Python {platform.python_version()}, {machine.cores()} cores, load {os.getloadavg()[0]:.1f}"
        )
        print("| engine | start | memory | one stream | eight at once |\n|---|---|---|---|---|")
        for engine in flags.engines.split(","):
            found = measure(engine, folder, flags.tokens)
            print(
                f"| {engine} | {found.start_s:.0f} s | {found.memory_mib:,} MiB | {found.one:.1f} tokens/s | "
                f"{found.many:.1f} tokens/s |",
                flush=True,
            )


if __name__ == "__main__":
    main()
