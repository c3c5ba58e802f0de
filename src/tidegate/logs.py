"""Events, as one line each: on the terminal and in `logs/tidegate.log`, or as JSON on a child's stderr.

    [2026-03-01T12:00:00+08:00] INFO engine ready replica=default-0 seconds=1.9

`get()` gives the logger: `log.info("engine ready", replica="default-0")`. Handlers are the standard library's, so that
what libraries log, Python's warnings and uncaught exceptions arrive in the same place. Before `configure`, warnings
and errors go to stderr bare, as with any library.

A value is quoted when it holds blanks, line ends are escaped, and secrets are masked in every line (`redact`). A line
that cannot be written (disk full, terminal gone) is lost and counted; the program goes on.
"""

import contextlib
import json
import logging
import logging.handlers
import re
import sys
import threading
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO, cast

import structlog

from tidegate.config import LogSettings
from tidegate.errors import OperatorError

MAX_VALUE_CHARS = 8_000
"""A longer value is cut; a traceback of forty frames still fits."""
MAX_FOREIGN_CHARS = 2_000
"""Longest part kept of a line that another program wrote."""

NOISY = ("alembic", "httpcore", "httpx", "openai", "urllib3", "uvicorn.access", "watchfiles")
"""Libraries that tell each request or step at INFO; they are heard from WARNING on, and in full at level debug."""

_SECRET_NAME = re.compile(r"(^|[_-])(key|token|authorization|password|passwd|secret|cookie)$", re.IGNORECASE)
_SECRETS = (
    (re.compile(r"sk-[A-Za-z0-9]{1,8}-[A-Za-z0-9_-]{8,}"), "sk-***"),
    (re.compile(r"(?i)\b(bearer|basic)\s+[A-Za-z0-9._~+/=-]{8,}"), r"\1 ***"),
    (re.compile(r"(?<=://)([^\s:/@\"]*):[^\s/@\"]+@"), r"\1:***@"),
)
_UNSAFE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_NEEDS_QUOTES = re.compile(r"[\s\"=\x00-\x1f\x7f-\x9f\u2028\u2029]")
_LEVEL_NAME = re.compile(r"\b(DEBUG|INFO|WARN|WARNING|ERROR|CRITICAL|FATAL)\b")
_LEVEL_LETTER = re.compile(r"^\S{0,24}\s?([DIWE])\s")
_BAD_WORDS = re.compile(r"\b(error|fatal|exception|traceback|abort(ed)?|segmentation fault)\b", re.IGNORECASE)
_WARNING_WORDS = re.compile(r"\b(warn(ing)?|fail(ed|ure)?|cannot|unable)\b", re.IGNORECASE)
_LEVELS = {
    "D": logging.DEBUG,
    "DEBUG": logging.DEBUG,
    "I": logging.INFO,
    "INFO": logging.INFO,
    "W": logging.WARNING,
    "WARN": logging.WARNING,
    "WARNING": logging.WARNING,
    "E": logging.ERROR,
    "ERROR": logging.ERROR,
    "CRITICAL": logging.CRITICAL,
    "FATAL": logging.CRITICAL,
}


def get() -> structlog.stdlib.BoundLogger:
    """The logger of events. Keyword arguments are the event's keys; `exc_info=True` adds the traceback."""
    logger = structlog.wrap_logger(
        logging.getLogger("tidegate"),
        processors=[structlog.stdlib.filter_by_level, _to_record],
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    return cast("structlog.stdlib.BoundLogger", logger)


def configure(settings: LogSettings, *, file: Path | None, terminal: bool) -> None:
    """Send events to `file` (rotated by size and count) and, if `terminal`, to stderr. May be called again.

    Raises OperatorError when the file cannot be opened.
    """
    handlers: list[logging.Handler] = []
    if file is not None:
        try:
            handlers.append(_FileHandler(file, settings.max_bytes, settings.backups))
        except OSError as error:
            hint = "look at its permissions, and at the space that is free"
            raise OperatorError(f"the log {file} cannot be written: {error.strerror}", hint=hint) from error
    if terminal:
        handlers.append(_TerminalHandler(sys.stderr))
    formatter = _JsonFormatter() if settings.format == "json" else _TextFormatter()
    _install(handlers, formatter, settings.level)


def configure_child(level: str = "info") -> None:
    """Send events to stderr as JSON lines, which `emit_line` of the parent understands."""
    _install([_TerminalHandler(sys.stderr)], _JsonFormatter(), level)


def set_level(level: str) -> None:
    """Change the least level that is told, at once."""
    number = _LEVELS[level.upper()]
    logging.getLogger().setLevel(number)
    for name in NOISY:
        logging.getLogger(name).setLevel(number if number == logging.DEBUG else max(number, logging.WARNING))


def close() -> None:
    """Undo `configure`: flush and close the handlers, give warnings and uncaught exceptions back."""
    root = logging.getLogger()
    for handler in root.handlers[:]:
        if isinstance(handler, _FileHandler | _TerminalHandler):
            root.removeHandler(handler)
            handler.close()
    logging.captureWarnings(capture=False)
    if isinstance(sys.excepthook, _UncaughtHook):
        sys.excepthook = sys.excepthook.previous
    if isinstance(threading.excepthook, _ThreadHook):
        threading.excepthook = threading.excepthook.previous


def emit_line(line: str | bytes, source: str, *, engine: bool = False) -> None:
    """Tell again a line that the child process `source` wrote.

    A line of `configure_child` keeps its time, level and keys; any other becomes the event "engine log" or "process
    log" with its level guessed. `source` is added as `replica` for an engine, else as `process`.
    """
    text = (line.decode("utf-8", "replace") if isinstance(line, bytes) else line).rstrip()
    if not text:
        return
    name = "replica" if engine else "process"
    ours = _parse_ours(text)
    if ours is None:
        level, event = guess_level(text), "engine log" if engine else "process log"
        _hand_on(level, event, {name: source, "line": _cut(text, MAX_FOREIGN_CHARS)}, None)
        return
    told, level, event, fields = ours
    fields.setdefault(name, source)
    _hand_on(level, event, fields, told)


def guess_level(line: str) -> int:
    """The level of another program's line: its own word or letter for it, else by words that mean trouble."""
    found = _LEVEL_NAME.search(line[:80]) or _LEVEL_LETTER.search(line)
    if found:
        return _LEVELS[found[1]]
    if _BAD_WORDS.search(line):
        return logging.ERROR
    return logging.WARNING if _WARNING_WORDS.search(line) else logging.INFO


def redact(text: str) -> str:
    """`text` without keys of ours or of others' in their usual forms, bearer tokens, and passwords in URLs."""
    for pattern, replacement in _SECRETS:
        text = pattern.sub(replacement, text)
    return text


def _install(handlers: list[logging.Handler], formatter: logging.Formatter, level: str) -> None:
    close()
    root = logging.getLogger()
    for bare in [handler for handler in root.handlers if type(handler) is logging.StreamHandler]:
        root.removeHandler(bare)  # a library's basicConfig; every line would be told twice
    for handler in handlers:
        handler.setFormatter(formatter)
        root.addHandler(handler)
    set_level(level)
    logging.captureWarnings(capture=True)
    sys.excepthook = _UncaughtHook(sys.excepthook)
    threading.excepthook = _ThreadHook(threading.excepthook)


def _to_record(_logger: Any, _method: str, event: structlog.typing.EventDict) -> tuple[tuple[str], dict[str, Any]]:
    """The last processor: arguments of the standard logger's method. Keys travel in one attribute, so none clashes."""
    arguments = {name: event.pop(name) for name in ("exc_info", "stack_info") if name in event}
    return (str(event.pop("event", "")),), {**arguments, "extra": {"fields": dict(event)}}


def _hand_on(level: int, event: str, fields: dict[str, Any], told: float | None) -> None:
    logger = logging.getLogger("tidegate")
    if not logger.isEnabledFor(level):
        return
    record = logger.makeRecord(logger.name, level, "", 0, event, (), None, extra={"fields": fields})
    if told is not None:
        record.created = told
    logger.handle(record)


def _parse_ours(text: str) -> tuple[float, int, str, dict[str, Any]] | None:
    if not text.startswith('{"time"'):
        return None
    try:
        fields = json.loads(text)
        told = datetime.fromisoformat(fields.pop("time")).timestamp()
        return told, _LEVELS[fields.pop("level").upper()], str(fields.pop("event")), fields
    except (ValueError, KeyError, TypeError, AttributeError):
        return None  # cut short, or another program's JSON


class _FileHandler(logging.handlers.RotatingFileHandler):
    """A rotated file. Whatever stops a line from being written stops only that line; the first is told on stderr."""

    def __init__(self, file: Path, max_bytes: int, backups: int) -> None:
        self.lost = 0
        # Without a backup the standard handler never rotates; one is the least that bounds the size.
        super().__init__(
            file, maxBytes=max_bytes, backupCount=max(backups, 1), encoding="utf-8", errors="backslashreplace"
        )

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - the standard library's name
        del record
        self.lost += 1
        if self.lost == 1:
            with contextlib.suppress(OSError, ValueError):
                sys.stderr.write(f"tidegate: the log {self.baseFilename} cannot be written: {sys.exception()}\n")

    def close(self) -> None:
        try:
            super().close()
        except OSError:
            self.lost += 1  # what the full disk refused before is refused again by the last flush


class _TerminalHandler(logging.StreamHandler[TextIO]):
    """stderr, for as long as somebody is there to read it."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - the standard library's name
        """A terminal that is gone is no reason to stop, and there is nowhere to say so."""


class _Formatter(logging.Formatter):
    """What both formats share: the keys of a record, masked and bounded."""

    def fields(self, record: logging.LogRecord) -> dict[str, Any]:
        fields: dict[str, Any] = dict(getattr(record, "fields", {}))
        if record.name != "tidegate":
            fields.setdefault("logger", record.name)
        if record.exc_info and record.exc_info[0] is not None:
            kind, error, _ = record.exc_info
            fields.setdefault("error", f"{kind.__name__}: {error}")
            fields["traceback"] = self.formatException(record.exc_info)
        if record.stack_info:
            fields["stack"] = record.stack_info
        return {name: "***" if _SECRET_NAME.search(name) else _tame(value) for name, value in fields.items()}


class _TextFormatter(_Formatter):
    """`[time] LEVEL event key=value`, local time."""

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, UTC).astimezone().isoformat(timespec="seconds")
        event = _UNSAFE.sub(_escape, _cut(record.getMessage().rstrip(), MAX_VALUE_CHARS))
        pairs = "".join(f" {name}={_text(value)}" for name, value in self.fields(record).items())
        return redact(f"[{time}] {record.levelname} {event}{pairs}")


class _JsonFormatter(_Formatter):
    """One object a line: time, level, event, then the event's own keys."""

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, UTC).astimezone().isoformat(timespec="milliseconds")
        event = _cut(record.getMessage().rstrip(), MAX_VALUE_CHARS)
        line: dict[str, Any] = {"time": time, "level": record.levelname.lower(), "event": event}
        for name, value in self.fields(record).items():
            line[f"{name}_" if name in line else name] = value
        return redact(_UNSAFE.sub(_escape, json.dumps(line, ensure_ascii=False, default=str)))


class _UncaughtHook:
    """An uncaught exception of the main thread is an event; Ctrl-C is left to `previous`."""

    def __init__(self, previous: Callable[..., Any]) -> None:
        self.previous = previous

    def __call__(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if not issubclass(kind, Exception):
            self.previous(kind, error, trace)
            return
        get().critical("uncaught exception", exc_info=(kind, error, trace))


class _ThreadHook:
    """The same for other threads."""

    def __init__(self, previous: Callable[[threading.ExceptHookArgs], Any]) -> None:
        self.previous = previous

    def __call__(self, args: threading.ExceptHookArgs) -> None:
        if args.exc_value is None or not issubclass(args.exc_type, Exception):
            self.previous(args)
            return
        name = args.thread.name if args.thread else ""
        get().critical("uncaught exception", thread=name, exc_info=(args.exc_type, args.exc_value, args.exc_traceback))


def _tame(value: Any) -> Any:
    """`value` with the secrets of nested mappings masked and long text cut."""
    if isinstance(value, str):
        return _cut(value, MAX_VALUE_CHARS)
    if isinstance(value, Mapping):
        return {str(name): "***" if _SECRET_NAME.search(str(name)) else _tame(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_tame(inner) for inner in value]
    if value is None or isinstance(value, bool | int | float):
        return value
    return _cut(str(value), MAX_VALUE_CHARS)


def _text(value: Any) -> str:
    if isinstance(value, float) and not value.is_integer():
        return f"{value:.6g}" if abs(value) < 1e6 else f"{value:.3f}"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    if not isinstance(value, str) or (text and not _NEEDS_QUOTES.search(text)):
        return text
    return _UNSAFE.sub(_escape, json.dumps(text, ensure_ascii=False))


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text) - limit} more)"


def _escape(found: re.Match[str]) -> str:
    return {"\n": "\\n", "\t": "\\t", "\r": "\\r"}.get(found[0], f"\\u{ord(found[0]):04x}")
