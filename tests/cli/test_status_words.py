"""What `tidegate status` says below its table."""

import pytest

from tidegate.cli.status import told_of
from tidegate.control.status import ReplicaStatusView
from tidegate.engines.start_times import StartTimes
from tidegate.types import ReplicaState

GIB = 1024**3


def replica(state=ReplicaState.READY, **more):
    fields = {
        "id": "p-0",
        "pool": "p",
        "model": "m",
        "engine": "vllm",
        "state": state,
        "url": "",
        "pid": 1,
        "restarts": 0,
        "memory_bytes": None,
        "ready_s": 1.0,
        "slots": 1,
        "context_tokens": 1,
        "version": "",
        "in_flight": 0,
        "requests": 0,
        "failures": 0,
    }
    return ReplicaStatusView(**(fields | more))


@pytest.mark.parametrize("started_s", [None, 0.0, 4.9])
def test_a_short_start_is_worth_no_line(started_s):
    assert told_of(replica(started_s=started_s, start=StartTimes(load_s=1.0))) == []


def test_a_long_start_is_told_in_parts_and_a_slow_disk_with_what_to_do():
    times = StartTimes(240.0, 13.0, 11.0, GIB, GIB)
    assert told_of(replica(started_s=300.0, start=times, slow=times.slow_disk(300.0))) == [
        "p-0: its start took 300 s: load 240.0 s, compile 13.0 s, warm-up 11.0 s, rest 36.0 s",
        "p-0: weights on a slow disk: 4 min of 5 (1.0 GiB at 4 MB/s); `tidegate models stage m` copies them to a fast one",
    ]
    assert told_of(replica(started_s=300.0)) == ["p-0: its start took 300 s"]


def test_one_that_was_given_up_has_its_last_words_and_the_command_that_starts_it_again():
    given_up = replica(ReplicaState.FAILED, log_tail=("[bold]a", "b"), start_again="tidegate scale p")
    assert told_of(given_up) == ["  | [bold]a", "  | b", "  `tidegate scale p` starts p-0 again"]
    assert told_of(replica(ReplicaState.STARTING, log_tail=("a",))) == []
