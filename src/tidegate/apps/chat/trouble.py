"""What can go wrong with an answer, and how it is said."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import openai


class Kind(StrEnum):
    AWAY = "away"
    LOADING = "loading"
    BUSY = "busy"
    BROKEN = "broken"
    TOO_LONG = "too_long"
    KEY = "key"
    NO_MODEL = "no_model"
    EMPTY = "empty"
    SIGN_IN = "sign_in"
    OTHER = "other"


AGAIN = frozenset({Kind.AWAY, Kind.LOADING, Kind.BUSY, Kind.BROKEN})
"""What passes by itself: the question is asked again."""


class TroubleError(Exception):
    """No answer, or not the whole of one."""

    def __init__(self, kind: Kind, *, retry_after_s: float | None = None, detail: str = "") -> None:
        super().__init__(f"{kind}: {detail}" if detail else str(kind))
        self.kind, self.retry_after_s, self.detail = kind, retry_after_s, detail

    @property
    def passes(self) -> bool:
        return self.kind in AGAIN


def trouble_of(error: openai.OpenAIError, *, begun: bool) -> TroubleError:
    """The trouble behind an error of the client. `begun`: a part of the answer had come."""
    if isinstance(error, openai.APIStatusError):
        return _of_status(error)
    if isinstance(error, openai.APIConnectionError):
        return TroubleError(Kind.BROKEN if begun else Kind.AWAY, detail=str(error))
    # What is left is an error event within the stream.
    code = str(getattr(error, "code", None) or "")
    return TroubleError(Kind.TOO_LONG if _too_long(code, str(error)) else Kind.BROKEN, detail=str(error))


def _of_status(error: openai.APIStatusError) -> TroubleError:
    status = error.status_code
    body: Any = error.body if isinstance(error.body, dict) else {}
    said = str(body.get("message") or error.message)
    wait = retry_after(error.response.headers.get("retry-after", ""))
    if status in {401, 403}:
        return TroubleError(Kind.KEY, detail=said)
    if status == 404:
        return TroubleError(Kind.NO_MODEL, detail=said)
    if status == 429:
        return TroubleError(Kind.BUSY, retry_after_s=wait, detail=said)
    if status in {502, 503, 504}:
        return TroubleError(Kind.LOADING, retry_after_s=wait, detail=said)
    if status in {400, 413} and _too_long(f"{body.get('code')} {body.get('type')}", said):
        return TroubleError(Kind.TOO_LONG, detail=said)
    return TroubleError(Kind.OTHER, detail=f"{status} {said}")


def _too_long(code: str, message: str) -> bool:
    told = f"{code} {message}".lower()
    return any(
        words in told
        for words in ("context_length_exceeded", "exceed_context_size", "context length", "context size", "too large")
    )


def retry_after(value: str) -> float | None:
    """Seconds of a Retry-After header, or None."""
    try:
        seconds = float(value)
    except ValueError:
        return None
    return seconds if 0 <= seconds < float("inf") else None


@dataclass(frozen=True)
class Words:
    """The sentences of one language."""

    wait: dict[Kind, str]
    end: dict[Kind, str]
    again: str
    stopped: str
    failed: str

    def waiting(self, trouble: TroubleError, seconds: int) -> str:
        """Said while the question waits to be asked again."""
        return f"{self.wait[trouble.kind]} {self.again.format(seconds=seconds)}".strip()

    def given_up(self, trouble: TroubleError) -> str:
        """Said at the end."""
        return self.end[trouble.kind].format(detail=trouble.detail, seconds=round(trouble.retry_after_s or 0))


ENGLISH = Words(
    wait={
        Kind.AWAY: "The gateway does not answer.",
        Kind.LOADING: "The model is restarting or loading.",
        Kind.BUSY: "Many people are asking at this moment.",
        Kind.BROKEN: "The model stopped in the middle of its answer.",
    },
    end={
        Kind.AWAY: "The gateway does not answer. Whoever runs Tidegate can see with `tidegate status` what is wrong.",
        Kind.LOADING: "The model has not come back. Whoever runs Tidegate can see with `tidegate status` what is wrong.",
        Kind.BUSY: "Too many people are asking. Please try again in {seconds} s.",
        Kind.BROKEN: "The model stopped in the middle of its answer. Please ask again.",
        Kind.TOO_LONG: "This is more text than the model can read at once. Please shorten it, or begin a new chat.",
        Kind.KEY: "The gateway refuses the key of this page. Whoever runs Tidegate has to start it anew.",
        Kind.NO_MODEL: "The gateway has no model to answer with: {detail}",
        Kind.EMPTY: "The model answered with nothing. Please put the question in other words.",
        Kind.SIGN_IN: "Your key is no longer valid. Please sign in again.",
        Kind.OTHER: "The question was refused: {detail}",
    },
    again="Trying again in {seconds} s …",
    stopped="Stopped.",
    failed="Something went wrong in the chat page itself; its log says what.",
)

CHINESE = Words(
    wait={
        Kind.AWAY: "网关没有应答。",
        Kind.LOADING: "模型正在重启或加载。",
        Kind.BUSY: "当前提问的人较多。",
        Kind.BROKEN: "模型在回答中途停止了。",
    },
    end={
        Kind.AWAY: "网关没有应答。管理员可以用 `tidegate status` 查看原因。",
        Kind.LOADING: "模型没有恢复。管理员可以用 `tidegate status` 查看原因。",
        Kind.BUSY: "提问的人太多了，请在 {seconds} 秒后再试。",
        Kind.BROKEN: "模型在回答中途停止了，请再问一次。",
        Kind.TOO_LONG: "内容太长，超出了模型一次能读的长度。请缩短，或新建对话。",
        Kind.KEY: "网关不接受本页面的密钥。请管理员重新启动 Tidegate。",
        Kind.NO_MODEL: "网关上没有可以回答的模型：{detail}",
        Kind.EMPTY: "模型没有给出任何内容，请换一种说法再问。",
        Kind.SIGN_IN: "您的密钥已失效，请重新登录。",
        Kind.OTHER: "问题被拒绝：{detail}",
    },
    again="{seconds} 秒后自动重试……",
    stopped="已停止。",
    failed="聊天页面自身出错，原因见日志。",
)


def words_of(language: str) -> Words:
    """The sentences for a browser's language."""
    return CHINESE if language.lower().startswith("zh") else ENGLISH
