"""The trace of a gateway: when requests came and how long they were, and nothing of who or what; then sent again."""

import json
import os
import time

from gateway.byte_engine import answers
from gateway.conftest import CHAT, key_view
from gateway.test_accounting import NOON, ended, samples
from gateway.wire import until
from tidegate.bench import trace
from tidegate.gateway.access_log import AccessLog
from tidegate.gateway.accounting import Accounting
from tidegate.gateway.line_file import SharedFile
from tidegate.gateway.metrics import Metrics
from tidegate.gateway.record import Caller
from tidegate.gateway.request_files import RequestFiles
from tidegate.gateway.trace_log import TraceLog
from tidegate.home import Home
from tidegate.types import FleetSnapshot, LineFileOptions, Outcome

WANTED = LineFileOptions(enabled=True)


def lines(*files):
    return [json.loads(line) for file in files for line in file.read_bytes().splitlines()]


def test_a_line_says_when_a_request_came_and_how_long_it_was_and_no_more(tmp_path):
    log = TraceLog(tmp_path / "traces" / "trace.jsonl")
    log.apply(WANTED)
    log.add(
        [
            ended(at_s=NOON + 0.25, total_s=1.5, caller=Caller("sales", "anna", "k1")),
            ended(at_s=NOON, total_s=0.0, outcome=Outcome.FAILED, status=502, prompt_tokens=None, stream=False),
            ended(path="/v1/embeddings"),
        ]
    )
    log.close()
    file = tmp_path / "traces" / "trace.jsonl"
    first, second = lines(file)
    assert first == {
        "at_s": NOON - 1.25,
        "class": "interactive",
        "prompt_tokens": 5,
        "output_tokens": 11,
        "total_ms": 1500.0,
        "stream": True,
        "outcome": "done",
        "status": 200,
    }
    assert (second["at_s"], second["prompt_tokens"], second["stream"]) == (NOON, None, False)
    assert (second["outcome"], second["status"]) == ("failed", 502)
    assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o600, 0o700)


async def test_what_is_written_holds_no_text_no_key_and_nobodys_name(engine, gateway, tmp_path):
    """Neither of a request that was answered, nor of one that was refused."""
    usage = {"prompt_tokens": 10, "completion_tokens": 20, "total_tokens": 30}
    body = json.dumps({"id": "c", "choices": [{"message": {"content": "SECRETANSWER"}}], "usage": usage}).encode()
    behind = await engine(answers(body))
    home = Home(tmp_path)
    home.create()
    files = RequestFiles.below(home)
    mine = "sk-tg-SECRETKEY"
    running = await gateway(
        behind.view(), files=files, keys=(key_view(mine),), keys_required=True, access_log=WANTED, trace=WANTED
    )
    asked = {"model": "m", "messages": [{"role": "user", "content": "SECRETPROMPT"}], "user": "SECRETUSER"}
    before = time.time()
    async with await running.connect() as client:
        for key in (mine, "sk-tg-WRONGKEY"):
            headers = (f"Authorization: Bearer {key}", "X-Request-Id: SECRETID", "User-Agent: SECRETAGENT")
            await client.ask("POST", CHAT, json.dumps(asked).encode(), headers)
    await until(lambda: running.outcomes == {"done": 1}, "the end")
    running.gateway.accounting.settle()
    files.close()
    written = b"".join(file.read_bytes() for file in home.traces.iterdir())
    (line,) = map(json.loads, written.splitlines())
    assert before - 0.002 <= line["at_s"] <= time.time()
    assert (line["prompt_tokens"], line["output_tokens"], line["stream"], line["outcome"]) == (10, 20, False, "done")
    for word in (b"SECRET", b"WRONG", b"sk-tg", b"127.0.0.1", b"pool-0", b"/v1/", b'"t"', b'"m"'):
        assert word not in written
    assert set(line) == {"at_s", "class", "prompt_tokens", "output_tokens", "total_ms", "stream", "outcome", "status"}
    assert b"SECRETID" in (home.logs / "access.log").read_bytes(), "the access log does have it"


def test_each_day_has_a_file_of_its_own_and_the_oldest_goes(tmp_path):
    file = tmp_path / "trace.jsonl"
    shared = SharedFile(file, daily=True)
    shared.backups = 2
    for day in range(4):
        shared.write(b"%d\n" % day)
        shared.write(b"%d again\n" % day)
        yesterday = time.time() - 86_400
        os.utime(file, (yesterday, yesterday))
    shared.close()
    kept = [(path.name, path.read_bytes()) for path in sorted(tmp_path.iterdir())]
    assert kept == [
        ("trace.jsonl", b"3\n3 again\n"),
        ("trace.jsonl.1", b"2\n2 again\n"),
        ("trace.jsonl.2", b"1\n1 again\n"),
    ]


def counting(tmp_path):
    """Accounting with a trace that nobody begins or empties."""
    files = RequestFiles(AccessLog(tmp_path / "access.log"), TraceLog(tmp_path / "trace.jsonl"))
    return Accounting(Metrics(), files), files


def test_a_full_disk_costs_lines_which_are_counted(tmp_path):
    accounting, files = counting(tmp_path)
    (tmp_path / "trace.jsonl").symlink_to("/dev/full")
    accounting.apply(FleetSnapshot(number=1, trace=WANTED))
    for _ in range(40):
        accounting.ended(ended())
    accounting.settle()
    files.close()
    found = samples(accounting)
    assert found["tidegate_trace_dropped_total", (("reason", "disk"),)] == 40
    assert found["tidegate_access_log_dropped_total", (("reason", "disk"),)] == 0
    assert not (tmp_path / "access.log").exists(), "it was not asked for"


def test_recording_begins_and_ends_with_the_settings(tmp_path):
    accounting, files = counting(tmp_path)
    for number, options in enumerate((LineFileOptions(), WANTED, LineFileOptions())):
        accounting.apply(FleetSnapshot(number=number, trace=options))
        accounting.ended(ended(prompt_tokens=number))
        accounting.settle()
    files.close()
    assert [line["prompt_tokens"] for line in lines(tmp_path / "trace.jsonl")] == [1]


def test_what_was_written_is_read_again_in_order_over_files_put_aside(tmp_path):
    """Arrivals by when requests came, though the first that came was the last to end."""
    home = Home(tmp_path)
    log = RequestFiles.below(home).trace
    log.apply(LineFileOptions(enabled=True, max_bytes=100, backups=20))
    ends = [ended(at_s=NOON + 10, total_s=10.0, prompt_tokens=1)]
    ends += [ended(at_s=NOON + at, total_s=0.5, prompt_tokens=at) for at in range(11, 24)]
    for one in ends:
        log.queue.append(log.lines([one]))
        log._flush()
    log.close()
    assert len(list(home.traces.iterdir())) > 10
    read = trace.load(home.traces, 2.0)
    assert read.notes == []
    assert [one.prompt_tokens for one in read.arrivals] == [1, *range(11, 24)]
    assert [one.at_s for one in read.arrivals] == [0.0, *((at - 0.5) / 2 for at in range(11, 24))]
    newest = trace.load(home.traces / "trace.jsonl", 1.0)
    assert len(newest.arrivals) < 14
