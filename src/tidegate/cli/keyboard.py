"""Single keys from a terminal, without waiting for Enter."""

import contextlib
import os
import select
import termios
import tty
from collections.abc import Iterator
from typing import Final

ESCAPE: Final = b"\x1b"
SEQUENCES: Final = {b"[A": "up", b"OA": "up", b"[B": "down", b"OB": "down"}
"""What the arrow keys send after an escape, in normal and in application mode (xterm's control sequences)."""
LONGEST: Final = 16
"""No key sends more than so many bytes."""
SPLIT_S: Final = 0.05
"""Longest pause within what one key sends, over a slow line."""
END: Final = "end"
"""There is no more input: the terminal is gone."""


@contextlib.contextmanager
def raw_keys(terminal: int) -> Iterator[None]:
    """Keys come at once and are not echoed; Ctrl-C still interrupts, Ctrl-Z does nothing. Undone at the end."""
    before = termios.tcgetattr(terminal)
    tty.setcbreak(terminal)
    try:
        now = termios.tcgetattr(terminal)
        now[6][termios.VSUSP] = os.fpathconf(terminal, "PC_VDISABLE").to_bytes(1, "little")
        termios.tcsetattr(terminal, termios.TCSANOW, now)
        yield
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)


def pressed(terminal: int, timeout_s: float) -> list[str]:
    """The keys that come within `timeout_s`, as soon as there is one; END once there will be none."""
    if not select.select([terminal], [], [], max(0.0, timeout_s))[0]:
        return []
    data = _read(terminal)
    if not data:
        return [END]
    while len(data) < LONGEST and _unfinished(data) and select.select([terminal], [], [], SPLIT_S)[0]:
        more = _read(terminal)
        if not more:
            break
        data += more
    return keys_in(data)


def keys_in(data: bytes) -> list[str]:
    """`up`, `down`, and printable ASCII characters; other keys are passed over whole."""
    keys = []
    while data:
        if data.startswith(ESCAPE):
            length = _sequence(data[1:])
            name = SEQUENCES.get(data[1 : 1 + length])
            keys += [name] if name else []
            data = data[1 + length :]
        else:
            keys += [chr(data[0])] if 0x20 <= data[0] < 0x7F else []
            data = data[1:]
    return keys


def _sequence(data: bytes) -> int:
    """Length of the control sequence that `data` begins with, its escape left out (ECMA-48, 5.4)."""
    if data.startswith(b"O"):
        return min(2, len(data))
    if not data.startswith(b"["):
        return 0
    end = 1
    while end < len(data) and not 0x40 <= data[end] <= 0x7E:
        end += 1
    return min(end + 1, len(data))


def _unfinished(data: bytes) -> bool:
    last = data[data.rfind(ESCAPE) :] if ESCAPE in data else b""
    return last in {ESCAPE, ESCAPE + b"[", ESCAPE + b"O"}


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 1024)
    except OSError:  # EIO: its other side is gone
        return b""
