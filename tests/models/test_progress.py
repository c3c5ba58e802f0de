"""How long steps tell where they are."""

import io
import itertools
import re

from tidegate.models.progress import MIB, Bar, Lines, Silent, for_terminal


def test_without_a_terminal_there_is_a_line_each_few_seconds():
    out, clock = io.StringIO(), itertools.count(0, 3).__next__
    with Lines(out, clock).step("downloading x", 10 * MIB) as step:
        for done in (1, 2, 3, 4):
            step(done * MIB)
    assert out.getvalue().splitlines() == [
        "downloading x, 10 MiB",
        "downloading x: 2 MiB (20 %)",
        "downloading x: 4 MiB (40 %)",
        "downloading x: done in 21.0 s",
    ]


def test_a_size_that_is_not_known_is_left_out():
    out = io.StringIO()
    with Lines(out).step("converting", None) as step:
        step(5)
    assert out.getvalue().startswith("converting\nconverting: done")


def test_a_terminal_gets_a_bar_that_ends_full():
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    out = Terminal()
    progress = for_terminal(out)
    assert isinstance(progress, Bar)
    with progress.step("downloading x", 10 * MIB) as step:
        step(10 * MIB)
    progress.say("a sentence")
    assert re.search(r"downloading x.*10\.5/10\.5 MB", out.getvalue())
    assert out.getvalue().endswith("a sentence\n")
    assert isinstance(for_terminal(io.StringIO()), Lines)


def test_nobody_watching_is_told_nothing():
    silent = Silent()
    silent.say("x")
    with silent.step("x", 1) as step:
        step(1)
