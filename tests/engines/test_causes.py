import signal

import pytest

from tidegate.engines.causes import TAIL_LINES, likely_cause, size, tail


@pytest.mark.parametrize(
    ("lines", "status", "words"),
    [
        (("E llama_model_load: error loading model: data is not within the file bounds",), 3, "damaged"),
        (("unknown model architecture: 'x'",), 3, "upgrade xllamacpp"),
        (("ggml_aligned_malloc: failed to allocate 99 MB",), -6, "not enough memory"),
        ((), -signal.SIGKILL, "for want of memory"),
        ((), -signal.SIGILL, "AVX2"),
        ((), -signal.SIGUSR1, "SIGUSR1"),
        (("all is well",), 1, ""),
        ((), None, ""),
    ],
)
def test_the_last_lines_and_the_status_tell_the_likeliest_cause(lines, status, words):
    cause = likely_cause(lines, status)
    assert words in cause
    assert bool(words) == bool(cause)


def test_the_tail_is_of_this_life_alone_and_bounded(tmp_path):
    log = tmp_path / "log"
    log.write_text("of the life before\n")
    since = size(log)
    with log.open("a") as file:
        file.writelines(f"line {number}\n\n" for number in range(50))
    lines = tail(log, since)
    assert len(lines) == TAIL_LINES
    assert lines[-1] == "line 49"
    assert tail(log, since + 10_000)[-1] == "line 49"  # the file was cut meanwhile
    assert tail(tmp_path / "none") == ()
