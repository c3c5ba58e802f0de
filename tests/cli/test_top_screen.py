"""What `tidegate top` shows, and which keys it knows: no terminal needed."""

import msgspec
import pytest
from rich.cells import cell_len

from tidegate.cli.keyboard import keys_in
from tidegate.cli.top_screen import KEYS, printed, rate, screen, seconds
from tidegate.control.steering import Top, TopReplica
from tidegate.control.sums import ClassSum, FirstToken, ReplicaSum, Sums
from tidegate.types import BUILT_IN_CLASSES, GpuReport, ReplicaState


def replica(name, **more):
    seen = more.pop("seen", {})
    given = {
        "pool": "p",
        "model": "m",
        "engine": "vllm",
        "state": ReplicaState.READY,
        "drained": False,
        "limit_set": None,
        "slots": 16,
        "pid": 4242,
        "memory_bytes": 300 * 1024**2,
        "restarts": 0,
        "cause": "",
    }
    return TopReplica(id=name, seen=ReplicaSum(name, **seen), **{**given, **more})


def top_of(replicas, classes=BUILT_IN_CLASSES, gpus=()):
    return Top(
        version="1.2.3",
        at_s=0.0,
        up_s=7200.0,
        ready=True,
        window_s=10.0,
        memory_used_bytes=2 * 1024**3,
        memory_total_bytes=8 * 1024**3,
        sums=Sums(
            gateways=2,
            gpus=tuple(gpus),
            requests_per_s=12.34,
            tokens_per_s=3456.0,
            failed_per_s=0.5,
            first_token=FirstToken(0.085, 1.25, 120),
            classes=tuple(
                ClassSum(name, queued=12, wait_s=1.5, refused_per_s=0.2, first_token=FirstToken(0.09, 0.4, 9))
                for name in classes
            ),
        ),
        replicas=tuple(replicas),
    )


SEEN = {"limit": 16, "in_flight": 12, "running": 11, "waiting": 1, "kv_usage": 0.42, "by_class": {"batch": 9}}


def shown(top, *, width=80, height=24, selected="p-0", note="", trouble=""):
    lines = screen(top, width=width, height=height, selected=selected, note=note, trouble=trouble)
    return [line.plain for line in lines]


def test_eighty_columns_and_twenty_four_lines_hold_everything():
    lines = shown(top_of([replica(f"p-{n}", seen=SEEN) for n in range(4)]))
    assert len(lines) <= 24
    assert max(map(cell_len, lines)) <= 80
    text = "\n".join(lines)
    assert "12.3 requests/s, 3456 tokens/s" in text
    assert "0.5 failed/s" in text
    assert "p50 85 ms, p99 1.25 s (120 in 10 s)" in text
    assert all(name in text for name in BUILT_IN_CLASSES)
    row = next(line for line in lines if "> p-0" in line).split()
    assert row == [">", "p-0", "ready", "12/16", "11", "1", "42%", "0", "0", "9"]
    assert lines[-1] == KEYS
    assert "…" not in text
    assert "batc" in next(line for line in lines if "in/limit" in line)


@pytest.mark.parametrize("height", [1, 2, 3, 6, 10, 15, 24, 60])
@pytest.mark.parametrize("width", [1, 8, 40, 79, 80, 200])
def test_no_size_is_exceeded_however_many_replicas_and_classes_there_are(width, height):
    classes = [f"class-{n}" for n in range(30)]
    gpus = [GpuReport(str(n), "H", 0.5, 1, 2, 3.0, 4.0) for n in range(64)]
    top = top_of([replica(f"a-very-long-name-of-a-pool-{n}", seen=SEEN) for n in range(100)], classes, gpus)
    for selected in ("a-very-long-name-of-a-pool-0", "a-very-long-name-of-a-pool-99", "gone"):
        lines = shown(top, width=width, height=height, selected=selected)
        assert len(lines) <= height
        assert max(map(cell_len, lines)) <= width


@pytest.mark.parametrize("position", [0, 1, 50, 98, 99])
def test_the_replica_that_is_selected_is_always_in_sight(position):
    top = top_of([replica(f"p-{n}") for n in range(100)])
    assert any(line.startswith(f"> p-{position} ") for line in shown(top, selected=f"p-{position}"))


def test_a_limit_set_by_hand_has_a_star_and_one_that_does_not_exist_a_dash():
    top = top_of([replica("p-0", limit_set=3, seen=SEEN), replica("p-1")])
    text = "\n".join(shown(top))
    assert "12/3*" in text
    assert " 0/- " in text


def test_what_a_replica_suffers_from_is_said_when_it_is_selected():
    bad = replica("p-0", restarts=3, drained=True, cause="out of memory", seen={**SEEN, "health": ("errors",)})
    lines = shown(top_of([bad, replica("p-1")]), width=200)
    assert "not asked: errors" in lines[-2]
    assert "out of memory" in lines[-2]
    assert "drained by hand" in lines[-2]
    assert " out " in next(line for line in lines if line.startswith("> p-0"))
    assert "out of memory" not in "\n".join(shown(top_of([bad, replica("p-1")]), selected="p-1", width=200))


def test_eight_gpus_leave_room_for_replicas_and_one_that_tells_nothing_has_its_name():
    gpus = [GpuReport(str(n), "H", 1.0, 139 * 1024**3, 140 * 1024**3, 700.4, 65.0) for n in range(8)]
    lines = shown(top_of([replica("p-0")], gpus=gpus))
    assert "GPU 7: 100%, 139/140 GiB, 700 W, 65 °C" in "\n".join(lines)
    assert any(line.startswith("> p-0") for line in lines)
    assert "…" not in "\n".join(lines)
    assert "GPU 0: Some card" in "\n".join(shown(top_of([replica("p-0")], gpus=[GpuReport("a", "Some card")])))
    assert "and 57 more" in "\n".join(shown(top_of([replica("p-0")], gpus=gpus * 8)))


def test_trouble_is_said_before_the_last_note():
    assert shown(top_of([replica("p-0")]), note="done", trouble="it does not answer")[-2] == "it does not answer"
    assert shown(top_of([replica("p-0")]), note="done")[-2] == "done"


def test_words_of_an_engine_never_steer_the_terminal():
    bad = replica("p-0", model="\x1b[2J模型", cause="\x07\x9b31m\n")
    for line in [*shown(top_of([bad])), *(line.plain for line in printed(top_of([bad]), width=80))]:
        assert line.isprintable()
    assert "模型" in shown(top_of([bad]))[-2]


def test_wide_letters_take_two_columns():
    lines = shown(top_of([replica("池子池子池子池子池子池子-0", seen=SEEN)], ["批处理批处理批处理批处理"]), selected="")
    assert max(map(cell_len, lines)) <= 80


def test_all_replicas_and_their_causes_are_printed_where_nobody_scrolls():
    top = top_of([replica(f"p-{n}", cause="it died" if n == 70 else "") for n in range(80)])
    lines = [line.plain for line in printed(top, width=80)]
    assert sum(line.startswith("  p-") for line in lines) == 80
    assert lines[-1] == "p-70: it died"
    empty = msgspec.structs.replace(top, replicas=())
    assert "none yet" in "\n".join(line.plain for line in printed(empty, width=80))


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (0.04, "0"), (0.06, "0.1"), (12.34, "12.3"), (345.6, "346"), (9999, "9999"), (12_345, "12k")],
)
def test_rates_are_short(value, text):
    assert rate(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "-"), (0.0852, "85 ms"), (0.9999, "1.00 s"), (1.251, "1.25 s"), (9.999, "10 s"), (31.2, "31 s")],
)
def test_times_are_short(value, text):
    assert seconds(value) == text


@pytest.mark.parametrize(
    ("data", "keys"),
    [
        (b"q", ["q"]),
        (b"\x1b[A\x1b[B\x1bOA\x1bOB", ["up", "down", "up", "down"]),
        (b"+\x1b[A-", ["+", "up", "-"]),
        (b"\x1b[1;5Dq", ["q"]),
        (b"\x1b[15~\x1bOPd", ["d"]),
        (b"\x1b", []),
        (b"\x1b[", []),
        (b"\x1bq", ["q"]),
        ("é+".encode(), ["+"]),
        (b"\r\n\x00", []),
    ],
)
def test_arrows_and_letters_are_told_apart_and_other_keys_are_passed_over(data, keys):
    assert keys_in(data) == keys
