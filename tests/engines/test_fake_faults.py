import pytest

from tidegate.engines.fake_faults import Fault, FaultKind, Faults, marks, parse


@pytest.mark.parametrize(
    ("written", "fault"),
    [
        ("half_event", Fault(FaultKind.HALF_EVENT)),
        ("status=503", Fault(FaultKind.STATUS, 503)),
        ("reset@7", Fault(FaultKind.RESET, after=7)),
        ("huge_event=100@0x2", Fault(FaultKind.HUGE_EVENT, 100, 0, 2)),
    ],
)
def test_a_fault_is_read_as_it_is_written(written, fault):
    assert parse(written) == fault


@pytest.mark.parametrize("written", ["", "nonsense", "status=", "status=x", "reset@@1"])
def test_what_is_no_fault_is_refused_with_the_list(written):
    with pytest.raises(ValueError, match="there are: status, "):
        parse(written)


def test_a_counted_fault_is_committed_so_many_times():
    faults = Faults((parse("status=500x2"),))
    assert [bool(faults.take(reused=False)) for _ in range(3)] == [True, True, False]


def test_a_fault_of_the_engine_is_no_request_s():
    faults = Faults((parse("metrics_garbage"), parse("close_reused")))
    assert faults.take(reused=False) is None
    assert faults.take(reused=True) == Fault(FaultKind.CLOSE_REUSED)
    assert faults.find(FaultKind.METRICS_GARBAGE)


def test_a_message_may_ask_for_several_things():
    assert marks("Hi [[tokens:4]] there [[fault:status=500]]") == {"tokens": "4", "fault": "status=500"}
