"""One event is one line, wherever it comes from, and holds no secret."""

import json
import logging
import subprocess
import sys
import threading
import time
import warnings
from datetime import datetime
from pathlib import Path

import pytest

from tidegate import logs
from tidegate.config import LogSettings
from tidegate.errors import OperatorError


@pytest.fixture
def log_file(tmp_path, monkeypatch):
    monkeypatch.setenv("TZ", "Asia/Shanghai")
    time.tzset()
    file = tmp_path / "tidegate.log"
    level = logging.getLogger().level
    logs.configure(LogSettings(), file=file, terminal=False)
    yield file
    logs.close()
    logging.getLogger().setLevel(level)
    monkeypatch.undo()
    time.tzset()


def lines(file):
    return file.read_text().splitlines()


def test_an_event_is_time_level_event_and_keys(log_file):
    logs.get().info("engine ready", replica="default-0", seconds=1.9)
    stamp, rest = lines(log_file)[0].split("] ", 1)
    assert rest == "INFO engine ready replica=default-0 seconds=1.9"
    assert abs(datetime.fromisoformat(stamp[1:]).timestamp() - time.time()) < 5
    assert stamp.endswith("+08:00")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("plain", "plain"),
        ("你好", "你好"),
        ("two words", '"two words"'),
        ("a=b", '"a=b"'),
        ('a "quoted" one', r'"a \"quoted\" one"'),
        ("a\nb\x1b[31m", r'"a\nb\u001b[31m"'),
        ("a\x9b\u2028b", r'"a\u009b\u2028b"'),
        ("", '""'),
        (True, "true"),
        (None, "null"),
        (7, "7"),
        (0.123456789, "0.123457"),
        ([1, "x"], '[1, "x"]'),
        ({"a": 1}, '{"a": 1}'),
    ],
)
def test_values_are_quoted_where_they_need_it(log_file, value, text):
    logs.get().info("event", value=value)
    assert lines(log_file)[0].endswith(f"INFO event value={text}")


def test_an_event_with_line_ends_stays_one_line(log_file):
    logs.get().info("first\nsecond\r\nthird")
    assert len(lines(log_file)) == 1
    assert r"first\nsecond\r\nthird" in lines(log_file)[0]


def test_keys_that_python_s_records_use_themselves_are_free(log_file):
    logs.get().info("event", name="n", message="m", process="p", args="a", levelname="l")
    assert lines(log_file)[0].endswith("event name=n message=m process=p args=a levelname=l")


def test_json_lines_hold_the_same(tmp_path, log_file):
    logs.configure(LogSettings(format="json"), file=log_file, terminal=False)
    logs.get().warning("事件", level="x", n=1, f=0.5, s="a\nb", kind=LogSettings)
    told = json.loads(lines(log_file)[0])
    assert told.pop("time").endswith("+08:00")
    assert told.pop("kind").endswith("LogSettings'>")
    assert told == {"level": "warning", "event": "事件", "level_": "x", "n": 1, "f": 0.5, "s": "a\nb"}


def test_secrets_are_masked_by_name_and_by_form(log_file):
    secret = "sk-tg-" + "a1_-" * 10 + "abc"
    logs.get().info(
        f"made {secret}",
        key="k1",
        api_key="k2",
        Authorization="k3",
        headers={"authorization": "k4", "x-api-key": "k5", "accept": "fine"},
        text=f"Authorization: Bearer {'q' * 20}",
        url="postgresql://me:k6@db/x",
        tokens=12,
    )
    logging.getLogger("library").warning("sent %s", secret)
    text = log_file.read_text()
    assert secret not in text
    assert "q" * 20 not in text
    assert not [k for k in ("k1", "k2", "k3", "k4", "k5", "k6") if k in text]
    assert "tokens=12" in text
    assert "fine" in text


def test_secrets_are_masked_in_tracebacks(log_file):
    secret = "sk-tg-" + "b" * 43
    try:
        int(secret)
    except ValueError:
        logs.get().exception("it failed")
    text = log_file.read_text()
    assert secret not in text
    assert "ValueError: invalid literal for int() with base 10: 'sk-***'" in text
    assert "test_logs.py" in text
    assert len(lines(log_file)) == 1


def test_the_level_can_be_changed_live(log_file):
    log = logs.get()
    log.debug("one")
    logs.set_level("debug")
    log.debug("two")
    logs.set_level("error")
    log.warning("three")
    assert [line.split()[-1] for line in lines(log_file)] == ["two"]


def test_noisy_libraries_are_heard_from_warning_on(log_file):
    logging.getLogger("httpx").info("HTTP Request: GET …")
    logging.getLogger("httpx").warning("odd")
    assert len(lines(log_file)) == 1
    assert lines(log_file)[0].endswith("WARNING odd logger=httpx")


def test_the_file_is_rotated_by_size_and_count(tmp_path, log_file):
    logs.configure(LogSettings(max_bytes=64 * 1024, backups=2), file=log_file, terminal=False)
    for number in range(300):
        logs.get().info("event", number=number, filling="x" * 1000)
    files = sorted(path.name for path in tmp_path.iterdir())
    assert files == ["tidegate.log", "tidegate.log.1", "tidegate.log.2"]
    assert all(path.stat().st_size <= 64 * 1024 for path in tmp_path.iterdir())
    assert "number=299" in lines(log_file)[-1]


def test_without_backups_the_size_is_bounded_all_the_same(tmp_path, log_file):
    logs.configure(LogSettings(max_bytes=64 * 1024, backups=0), file=log_file, terminal=False)
    for _ in range(300):
        logs.get().info("event", filling="x" * 1000)
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 2 * 64 * 1024


def test_configuring_again_does_not_tell_a_line_twice(log_file):
    logs.configure(LogSettings(), file=log_file, terminal=False)
    logs.get().info("once")
    assert len(lines(log_file)) == 1


def test_a_full_disk_loses_lines_and_nothing_else(log_file, capfd):
    logs.configure(LogSettings(), file=Path("/dev/full"), terminal=True)
    for number in range(50):
        logs.get().info("event", number=number, filling="x" * 1000)
    logs.close()
    shown = capfd.readouterr().err
    assert shown.count("cannot be written") == 1
    assert "number=49" in shown


def test_a_file_that_cannot_be_opened_is_an_operator_s_error(tmp_path):
    with pytest.raises(OperatorError, match="cannot be written: No such file or directory"):
        logs.configure(LogSettings(), file=tmp_path / "no" / "log", terminal=False)


def test_a_terminal_that_is_gone_does_not_end_the_program(tmp_path):
    code = (
        "import os, sys; from tidegate import logs; from tidegate.config import LogSettings; from pathlib import Path\n"
        "logs.configure(LogSettings(), file=Path(sys.argv[1]), terminal=True)\n"
        "os.close(2); read, write = os.pipe(); os.dup2(write, 2); os.close(read)\n"
        "logs.get().info('one'); logs.get().info('two'); logs.close(); os._exit(0)"
    )
    subprocess.run([sys.executable, "-c", code, tmp_path / "log"], check=True, timeout=30)
    assert len(lines(tmp_path / "log")) == 2


def test_python_s_warnings_arrive(log_file):
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        logs.configure(LogSettings(), file=log_file, terminal=False)
        warnings.warn("old thing", DeprecationWarning, stacklevel=1)
        logs.close()
    assert "DeprecationWarning: old thing" in log_file.read_text()
    assert len(lines(log_file)) == 1


def test_uncaught_exceptions_arrive_from_both_kinds_of_thread(tmp_path):
    code = (
        "import sys, threading; from tidegate import logs; from tidegate.config import LogSettings; from pathlib import Path\n"
        "logs.configure(LogSettings(), file=Path(sys.argv[1]), terminal=False)\n"
        "def bad(): raise KeyError('in thread')\n"
        "t = threading.Thread(target=bad, name='worker'); t.start(); t.join()\n"
        "raise ValueError('in main')"
    )
    ended = subprocess.run([sys.executable, "-c", code, tmp_path / "log"], check=False, timeout=30, capture_output=True)
    assert ended.returncode == 1
    first, second = lines(tmp_path / "log")
    assert "CRITICAL uncaught exception thread=worker error=\"KeyError: 'in thread'\"" in first
    assert 'CRITICAL uncaught exception error="ValueError: in main"' in second


def test_closing_gives_the_hooks_back(log_file):
    logs.close()
    before = (sys.excepthook, threading.excepthook)
    logs.configure(LogSettings(), file=log_file, terminal=False)
    assert sys.excepthook is not before[0]
    logs.configure(LogSettings(), file=log_file, terminal=False)
    logs.close()
    assert (sys.excepthook, threading.excepthook) == before


def test_a_child_s_line_keeps_its_time_level_and_keys(log_file):
    child = subprocess.run(
        [
            sys.executable,
            "-c",
            "from tidegate import logs; logs.configure_child('debug'); logs.get().warning('慢 request', ms=12, text='a\\nb')",
        ],
        check=True,
        timeout=30,
        capture_output=True,
    ).stderr
    assert json.loads(child)["event"] == "慢 request"
    old = child.replace(child[: child.index(b",")], b'{"time": "2026-03-01T04:00:00.250+00:00"', 1)
    logs.emit_line(old, "gateway")
    assert lines(log_file) == [r'[2026-03-01T12:00:00+08:00] WARNING 慢 request ms=12 text="a\nb" process=gateway']


@pytest.mark.parametrize(
    ("line", "level"),
    [
        ("srv  load_model: loading model", "INFO"),
        ("0.00.012.345 W srv  : slow", "WARNING"),
        ("0.00.012.345 E srv  : out of memory", "ERROR"),
        ("2026-03-01 12:00:00 - INFO - error page made", "INFO"),
        ("llama_model_load: error loading model", "ERROR"),
        ("failed to mlock", "WARNING"),
        ('{"time": "cut sho', "INFO"),
        ('{"time": 5, "level": "info", "event": "x"}', "INFO"),
        ("no errors found", "INFO"),
    ],
)
def test_a_foreign_line_gets_a_guessed_level(log_file, line, level):
    logs.emit_line(line + "\n", "default-0", engine=True)
    assert f"] {level} engine log replica=default-0 line=" in lines(log_file)[0]


def test_a_foreign_line_is_bounded_and_may_be_broken_utf_8(log_file):
    logs.emit_line(b"\xff\xfe" + b"x" * 100_000 + b"\n", "chat")
    logs.emit_line(b"\n", "chat")
    assert len(lines(log_file)) == 1
    assert "process log process=chat" in lines(log_file)[0]
    assert len(lines(log_file)[0]) < 2_200


def test_a_debug_line_of_a_child_is_not_told_at_level_info(log_file):
    logs.emit_line('{"time": "2026-03-01T04:00:00+00:00", "level": "debug", "event": "x"}', "gateway")
    assert not lines(log_file)


def test_lone_surrogates_do_not_lose_the_line(log_file):
    logs.get().info("event", text="a\ud83d")
    assert "ud83d" in lines(log_file)[0]
