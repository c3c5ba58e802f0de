"""What `tidegate up` prints once everything runs: what to open, and a line that works when pasted. English or Chinese."""

import json
import shlex
from collections.abc import Sequence
from typing import Literal

from tidegate.config import Settings, is_loopback, split_address
from tidegate.control import ports
from tidegate.control.doctor.gpu import VLLM_COMMAND, GpuFacts
from tidegate.control.status import Status

Language = Literal["en", "zh"]

WORDS: dict[str, dict[Language, str]] = {
    "chat": {"en": "Chat page", "zh": "聊天页面"},
    "api": {"en": "OpenAI API", "zh": "OpenAI 接口"},
    "try": {"en": "Try it", "zh": "试一试"},
    "stop": {"en": "Stop with Ctrl-C.", "zh": "按 Ctrl-C 停止。"},
    "colleague": {"en": "For your colleagues on this network", "zh": "发给同一网络中的同事"},
    "key": {"en": "Key", "zh": "密钥"},
    "sign_in": {"en": "sign in with any name and the key as password", "zh": "登录：任意用户名，密码填密钥"},
    "hello": {"en": "Hello!", "zh": "你好！"},
    "no_key": {
        "en": "(requests need a key: put yours in TIDEGATE_API_KEY)",
        "zh": "（请求需要密钥：请把它放进 TIDEGATE_API_KEY）",
    },
}


def announce(status: Status, settings: Settings, secret: str | None, language: Language) -> str:
    """The text. `secret` is the key to show, if there is one."""

    def word(name: str) -> str:
        return WORDS[name][language]

    model = next((model.name for model in status.models if model.ready), status.models[0].name)
    lines = [""]
    if "chat" in status.urls:
        lines.append(f"  {word('chat')}:  {status.urls['chat']}")
    lines.append(f"  {word('api')}: {status.urls['api']}")
    key = secret or ("$TIDEGATE_API_KEY" if status.keys_required else "")
    note = f"  {word('no_key')}" if status.keys_required and not secret else ""
    lines.append(f"  {word('try')}:{note}")
    own = curl(status.urls["api"], model, word("hello"), key, own=True)
    lines.append(f"    {own}")
    lines.append(f"  {word('stop')}")
    host = ports.lan_address()
    if not is_loopback(settings.gateway.listen) and host is not None:
        api = f"{_elsewhere(status.urls['api'], settings.gateway.listen, host)}/v1"
        lines += ["", f"  {word('colleague')}:"]
        if "chat" in status.urls and not is_loopback(settings.chat.listen):
            note = f"  ({word('sign_in')})" if secret else ""
            lines.append(f"    {word('chat')}: {_elsewhere(status.urls['chat'], settings.chat.listen, host)}{note}")
        if secret:
            lines.append(f"    {word('key')}: {secret}")
        lines.append(f'    OpenAI(base_url="{api}", api_key="{secret or key or "none"}")   model="{model}"')
        lines.append(f"    {curl(api, model, word('hello'), key)}")
    return "\n".join([*lines, "", ""])


def curl(api: str, model: str, question: str, key: str, *, own: bool = False) -> str:
    """A curl line that can be pasted into a shell; a key that starts with `$` is left to the shell.

    With `own` it stays on this machine, where a certificate is not asked who it is: it is seldom for 127.0.0.1.
    """
    body = json.dumps({"model": model, "messages": [{"role": "user", "content": question}]}, ensure_ascii=False)
    trust = ["-k"] if own and api.startswith("https:") else []
    parts = ["curl", *trust, shlex.quote(f"{api}/chat/completions"), "-H", "'Content-Type: application/json'"]
    if key:
        header = f"Authorization: Bearer {key}"
        parts += ["-H", f'"{header}"' if key.startswith("$") else shlex.quote(header)]
    return " ".join([*parts, "-d", shlex.quote(body)])


def gpu_sentence(facts: GpuFacts, engines: Sequence[str], language: Language) -> str:
    """What was found and the one command that makes use of it; empty without a GPU, or where other engines serve."""
    gpus = facts.usable
    if not gpus or not set(engines).isdisjoint({"external", "vllm"}):
        return ""
    gpu = gpus[0]
    memory = f"{gpu.memory_bytes / 1024**3:.0f} GiB, " if gpu.memory_bytes else ""
    if language == "zh":
        return (
            f"发现 {len(gpus)} 块 GPU：{gpu.name}（{memory}驱动 {facts.driver}）。目前由 CPU 回答；"
            f"要使用 GPU，请停止后安装 vLLM，再次启动即由 GPU 回答：{VLLM_COMMAND}"
        )
    count = "a GPU" if len(gpus) == 1 else f"{len(gpus)} GPUs"
    return (
        f"Found {count}: {gpu.name} ({memory}driver {facts.driver}). The CPU answers for now; "
        f"with vLLM the GPU does, from the next start on: {VLLM_COMMAND}"
    )


def _elsewhere(url: str, listen: str, host: str) -> str:
    """The URL by which other machines reach what listens there."""
    listened, _ = split_address(listen)
    scheme, _, rest = url.partition("://")
    _, port = split_address(rest.partition("/")[0])
    name = host if listened in {"0.0.0.0", "::"} else listened  # noqa: S104 - compared, not bound
    return f"{scheme}://[{name}]:{port}" if ":" in name else f"{scheme}://{name}:{port}"
