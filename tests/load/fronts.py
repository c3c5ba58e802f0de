"""What an overload is measured on: engines with continuous batching, and what may stand before them."""

import os
import re
import shutil
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from load.overload import COMPLETIONS, Kind
from load.programs import Program, fake_engine, free_port, gateway, running

SLOTS, STEP_MS, PER_SEQUENCE_MS, PER_PROMPT_TOKEN_MS = 16, 25.0, 0.1, 0.05
CHAT_PROMPT_TOKENS, LONG_PROMPT_TOKENS = 85, 16_384
TEMPLATE_TOKENS = len("user: \nassistant: ")

INTERACTIVE = Kind("interactive", 32, stream=True)
BATCH = Kind("batch", 128)
LONG = Kind("long", 32, stream=True, path=COMPLETIONS)
"""No chat: the fake engine names a chat's role before it has read the prompt, and real engines do not."""
MIX: Mapping[str, float] = {"interactive": 0.7, "batch": 0.3}
KINDS = {kind.name: kind for kind in (INTERACTIVE, BATCH, LONG)}
LONG_PROMPTS = 50


def words(count: int, first: int = 0) -> str:
    """So many tokens of the fake engine's text."""
    return "".join(f"词{(first + number) % 10} " for number in range(count))


def requests() -> dict[str, list[bytes]]:
    """What is sent to fake engines; no long prompt begins like another."""
    chat = words(CHAT_PROMPT_TOKENS - TEMPLATE_TOKENS)
    longs = [
        LONG.request(words(4, number) + words(4, number // 10) + words(LONG_PROMPT_TOKENS - 8))
        for number in range(LONG_PROMPTS)
    ]
    return {"interactive": [INTERACTIVE.request(chat)], "batch": [BATCH.request(chat)], "long": longs}


def capacity(engines: int, shares: Mapping[str, float] = MIX) -> float:
    """Requests a second of a mix that so many engines serve at most: every slot busy in every step."""
    step_ms = (STEP_MS + PER_SEQUENCE_MS * SLOTS) / SLOTS
    prompt_ms = CHAT_PROMPT_TOKENS * PER_PROMPT_TOKEN_MS
    return engines * 1e3 / sum(share * (KINDS[name].tokens * step_ms + prompt_ms) for name, share in shares.items())


@contextmanager
def fake_engines(folder: Path, count: int = 2) -> Iterator[list[Program]]:
    """`tidegate fake-engine --batching`, so many."""
    flags = (
        *("--batching", "--slots", str(SLOTS), "--step-ms", str(STEP_MS), "--per-sequence-ms", str(PER_SEQUENCE_MS)),
        *("--per-prompt-token-ms", str(PER_PROMPT_TOKEN_MS), "--tokens", "4096", "--context-tokens", "65536"),
    )
    with ExitStack() as stack:
        yield [stack.enter_context(fake_engine(folder, *flags)) for _ in range(count)]


@contextmanager
def front(name: str, folder: Path, engines: Sequence[Program], key_file: Path | None = None) -> Iterator[Program]:
    """What stands before the engines: `direct` is the first of them itself, without anything."""
    if name == "direct":
        yield engines[0]
        return
    with nginx(folder, engines, key_file) if name == "nginx" else tidegate(folder, engines, key_file) as program:
        yield program


def tidegate(folder: Path, engines: Sequence[Program], key_file: Path | None = None):
    """`tidegate gateway` with the settings that it has by default."""
    if key_file is None:
        return gateway(folder, *engines)
    urls = [f"http://127.0.0.1:{engine.port}" for engine in engines]
    pool = f'[[pool]]\nname = "default"\nmodel = "auto"\nengine = "external"\nurls = {urls}\n'
    return gateway(folder, settings=f'{pool}[pool.options]\napi_key_file = "{key_file}"\n')


def has_nginx() -> bool:
    return shutil.which("nginx") is not None


def nginx(folder: Path, engines: Sequence[Program], key_file: Path | None = None):
    """nginx with least_conn, which sends a request on as soon as it has come."""
    port, work = free_port(), folder / "nginx"
    work.mkdir(exist_ok=True)
    servers = " ".join(f"server 127.0.0.1:{engine.port} max_fails=0;" for engine in engines)
    key = f'proxy_set_header Authorization "Bearer {key_file.read_text().strip()}";' if key_file else ""
    keeps = (
        not key_file
    )  # llama.cpp closes kept connections when it likes, and nginx answers 502 to who comes at that moment
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    (work / "nginx.conf").write_text(f"""
daemon off; worker_processes 1; worker_rlimit_nofile 20000;
{"user root;" if os.geteuid() == 0 else ""}
pid {work}/pid; error_log {work}/error.log;
events {{ worker_connections 9000; }}
http {{
  access_log off; client_body_buffer_size 1m;
  {" ".join(f"{kind}_temp_path {work}/{kind};" for kind in kinds)}
  upstream engines {{ least_conn; {servers} {"keepalive 512;" if keeps else ""} }}
  server {{
    listen 127.0.0.1:{port} backlog=4096;
    location / {{
      proxy_pass http://engines; proxy_http_version 1.1; proxy_set_header Connection "{"" if keeps else "close"}"; {key}
      proxy_buffering off; proxy_read_timeout 600s;
    }}
  }}
}}
""")
    found = shutil.which("nginx") or "nginx"
    return running(Program(["-c", str(work / "nginx.conf")], port, folder, "nginx", executable=found), "/v1/models")


def read_metrics(port: int, key: str = "") -> str:
    """A program's /metrics."""
    headers = {"authorization": f"Bearer {key}"} if key else {}
    with urllib.request.urlopen(
        urllib.request.Request(f"http://127.0.0.1:{port}/metrics", headers=headers), timeout=5
    ) as answer:
        return answer.read().decode()


def sum_of(metrics: str, name: str) -> float:
    """A metric, its labels added up."""
    return sum(float(value) for value in re.findall(rf"^{name}(?:{{.*}})? (\S+)$", metrics, re.MULTILINE))


def by_label(metrics: str, name: str, label: str) -> dict[str, float]:
    """A metric by one of its labels."""
    found = re.findall(rf'^{name}{{(?:.*,)?{label}="([^"]*)".*}} (\S+)$', metrics, re.MULTILINE)
    return {key: float(value) for key, value in found}


def tokens_made(engines: Sequence[Program], key: str = "") -> float:
    """Tokens that the engines have produced so far."""
    names = ("vllm:generation_tokens_total", "llamacpp:tokens_predicted_total")
    texts = [read_metrics(engine.port, key) for engine in engines]
    return sum(sum_of(text, name) for text in texts for name in names)
