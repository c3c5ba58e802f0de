"""Every error is in the tree, knows its status or exit code, and says what to do."""

import inspect

import pytest

from tidegate import errors

ALL = [kind for kind in vars(errors).values() if inspect.isclass(kind) and kind.__module__ == errors.__name__]


@pytest.mark.parametrize("kind", ALL)
def test_every_error_is_in_the_tree_and_in_the_page_that_shows_it(kind):
    assert issubclass(kind, errors.TidegateError)
    assert kind.__name__ in errors.__doc__


@pytest.mark.parametrize("kind", [kind for kind in ALL if issubclass(kind, errors.RequestError)])
def test_a_request_s_error_has_a_status_and_a_type(kind):
    error = kind("it was wrong", code="c", param="p", retry_after_s=1.5)
    assert 400 <= error.status < 600
    assert error.type.endswith(("error", "unavailable"))
    assert (error.message, error.code, error.param, error.retry_after_s) == ("it was wrong", "c", "p", 1.5)
    assert str(error) == "it was wrong"


def test_an_operator_s_errors_name_what_was_wrong_and_what_to_do():
    taken = errors.PortTakenError("127.0.0.1", 8000, "gateway.listen")
    assert str(taken) == "port 8000 on 127.0.0.1 cannot be used: it is already in use"
    assert "set gateway.listen" in taken.hint
    assert errors.SettingError("a.b", "is wrong", hint="mend it").hint == "mend it"
    assert "process 7" in str(errors.HomeLockedError("/h", 7))
    assert {kind.exit_code for kind in ALL if issubclass(kind, errors.OperatorError)} == {2}


def test_an_engine_that_did_not_start_hands_on_its_last_lines():
    error = errors.EngineStartError("no", log_tail=("a", "b"), cause="out of memory")
    assert (error.log_tail, error.cause) == (("a", "b"), "out of memory")
