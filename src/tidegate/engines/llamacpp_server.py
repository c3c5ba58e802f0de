"""llama.cpp's server in a process of its own: `python -m tidegate.engines.llamacpp_server --model FILE ...`.

It runs apart because a fault in C++ takes its whole process along. It listens on a port that the kernel picks, writes
`{"pid", "url"}` to the file it was told, and serves until SIGTERM. Its lines go to stderr.

Exit status: 0 after SIGTERM or SIGINT, 3 when the model cannot be loaded, 4 when the key cannot be read, 2 for wrong
arguments; negative when a signal or a fault in C++ ended it.
"""

import argparse
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any, Final

import msgspec

from tidegate.engines.base import ReadyFile
from tidegate.home import write_private

EXIT_MODEL: Final = 3
EXIT_KEY: Final = 4

HTTP_THREADS: Final = 512
"""Every connection holds a thread of the server, an idle one too; without a free thread even /health is not answered.
By default there are as many as slots and a few."""

SPINS: Final = "10000"
"""How long OpenMP's threads spin at a barrier (some 0.2 ms) before they sleep. By default they spin until a thread that
has lost its core to another program comes back, which on a busy machine costs most of the speed."""

WARNINGS: Final = 2
"""llama.cpp's verbosity: errors and warnings; its next step, 3, writes six lines for every request."""


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """The arguments."""
    parser = argparse.ArgumentParser(prog="llamacpp_server", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", type=Path, required=True, help="GGUF file")
    parser.add_argument("--name", required=True, help="name that answers carry, instead of the file's path")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on")
    parser.add_argument("--slots", type=int, required=True, help="sequences at once")
    parser.add_argument("--context-tokens", type=int, required=True, help="prompt plus answer of one request")
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--batch-tokens", type=int, default=512)
    parser.add_argument("--micro-batch-tokens", type=int, default=256)
    parser.add_argument("--key-file", type=Path, required=True, help="file that holds the key requests must carry")
    parser.add_argument("--ready-file", type=Path, required=True, help="where to write the URL")
    return parser.parse_args(argv)


def server_params(arguments: argparse.Namespace, key: str) -> Any:
    """llama.cpp's settings: one host, no page, no host-memory prompt cache (8 GiB by default), nothing fetched."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = str(arguments.model)
    params.model_alias = {arguments.name}
    params.n_parallel = arguments.slots
    params.n_ctx = arguments.slots * arguments.context_tokens
    params.n_batch = arguments.batch_tokens
    params.n_ubatch = min(arguments.micro_batch_tokens, arguments.batch_tokens)
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = arguments.threads
    params.hostnames = [arguments.host]
    params.port = 0
    params.api_keys = [key]
    params.endpoint_metrics = params.endpoint_slots = True
    params.ui = False
    params.offline = True
    params.use_jinja = True
    params.cache_prompt = True
    params.cache_ram_mib = 0
    params.cache_idle_slots = False  # needs that cache
    params.fit_params = False  # the context is what was asked for, or the start fails
    params.n_threads_http = HTTP_THREADS
    params.sse_ping_interval = -1  # a comment in a stream is no sign of life
    params.warmup = False  # the first request, asked for readiness, does the same
    params.verbosity = WARNINGS
    return params


def run(arguments: argparse.Namespace) -> int:
    """Serve until a signal comes; the exit status if that never began."""
    try:
        key = arguments.key_file.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        _say(f"the key file {arguments.key_file} cannot be read: {error}")
        return EXIT_KEY
    if not key:
        _say(f"the key file {arguments.key_file} is empty")
        return EXIT_KEY
    os.environ.setdefault("GOMP_SPINCOUNT", SPINS)  # read once, when the library is loaded
    import xllamacpp

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)  # loading is one long call into C++, in which no handler would run
    begun_s = time.monotonic()
    try:
        server = xllamacpp.Server(server_params(arguments, key))
    except RuntimeError as error:
        _say(f"{arguments.model} could not be loaded: {error}")
        return EXIT_MODEL
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _end)
    url = server.listening_address
    write_private(arguments.ready_file, msgspec.json.encode(ReadyFile(pid=os.getpid(), url=url)))
    loaded = f"loaded in {time.monotonic() - begun_s:.2f} s"
    slots = f"{arguments.slots} slots of {arguments.context_tokens} tokens"
    _say(f"{arguments.name} {loaded}, listens on {url}: {slots}")
    threading.Event().wait()
    return 0


def _end(_number: int, _frame: FrameType | None) -> None:
    """Go at once: the server's own end waits for its streams, and there is nothing to save."""
    os._exit(0)


def _say(line: str) -> None:
    sys.stderr.write(f"tidegate: {line}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    # Not sys.exit: the interpreter's end would wait for threads of a server that failed half-way.
    status = run(parse(None))
    sys.stderr.flush()
    os._exit(status)
