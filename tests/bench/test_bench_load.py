"""Load on servers of this machine: when requests leave, what becomes of answers that are none, and what is told of it."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from html.parser import HTMLParser

import pytest

from tidegate.bench import use
from tidegate.bench.driver import UNFINISHED, Driver
from tidegate.bench.workload import Planned, Wire
from tidegate.engines.fake_server import FakeServer, FakeServerOptions
from tidegate.http import Endpoint, Exchange, HttpServer, Limits

BENCH = [sys.executable, "-m", "tidegate", "bench", "run"]


def planned(url, times, *, stream=True, text="你好"):
    wire = Wire(Endpoint(url).host_header, "fake")
    return iter([Planned(at, wire.request(text, 8, stream=stream), "", stream) for at in times])


def driver(url, *, timeout_s=5.0, most_in_flight=1000, count_events=False):
    return Driver(Endpoint(url), timeout_s=timeout_s, most_in_flight=most_in_flight, count_events=count_events)


async def opened(url, times, *, stream=True, text="你好", **options):
    """Samples of an open loop, and its driver."""
    one = driver(url, **options)
    await one.open_loop(planned(url, times, stream=stream, text=text))
    return one


async def bench(*arguments, **options):
    """The command, run in a process of its own: exit code, what it said, and what it complained of."""
    process = await asyncio.create_subprocess_exec(
        *BENCH, *map(str, arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options
    )
    out, err = await process.communicate()
    return process.returncode, out.decode(), err.decode()


class Canned:
    """A server that answers every request with the same."""

    def __init__(self, body: bytes, kind: bytes = b"text/event-stream", status: int = 200, tls=None):
        self._tls = tls
        self._answer = (status, ((b"content-type", kind),), body)
        self._server = HttpServer(self._handle, Limits())

    def _handle(self, exchange: Exchange):
        exchange.respond(*self._answer)

    async def __aenter__(self):
        self._socket = socket.create_server(("127.0.0.1", 0))
        await self._server.start(self._socket, self._tls)
        return f"http{'s' if self._tls else ''}://127.0.0.1:{self._socket.getsockname()[1]}"

    async def __aexit__(self, *_):
        await self._server.close()
        self._socket.close()


# times


async def test_times_are_those_of_the_engine():
    """First token after 60 ms, then three every 20 ms: 60, 20 and 120 ms, with what a busy machine adds."""
    async with FakeServer(FakeServerOptions(tokens=4, first_ms=60, gap_ms=20)) as engine:
        one = await opened(engine.url, [0.0, 0.05, 0.1])
    assert [sample.kind for sample in one.samples] == ["", "", ""]
    for sample in one.samples:
        assert 0.058 <= sample.ttft <= 0.11
        assert 0.018 <= sample.tpot <= 0.04
        assert 0.118 <= sample.latency <= 0.2
        assert (sample.prompt_tokens > 0, sample.output_tokens, sample.events) == (True, 4, 4)
    assert len(one.gaps) == 9


async def test_waiting_in_the_server_is_counted_from_when_a_request_was_to_be_sent():
    """Ten at once for one slot of 50 ms: the last has waited half a second. A closed loop alone would see 50 ms each."""
    async with FakeServer(FakeServerOptions(tokens=1, first_ms=50, slots=1)) as engine:
        one = await opened(engine.url, [0.0] * 10)
        closed = driver(engine.url)
        await closed.closed_loop(planned(engine.url, range(5)), 1, None)
    assert max(sample.latency for sample in one.samples) >= 0.49
    assert sorted(sample.latency for sample in closed.samples)[2] < 0.1
    assert closed.most_in_flight == 1
    assert one.most_in_flight == 10


async def test_a_closed_loop_ends_by_time_and_waits_for_its_answers():
    async with FakeServer(FakeServerOptions(tokens=1, first_ms=30)) as engine:
        one = driver(engine.url)
        await one.closed_loop(planned(engine.url, range(10_000)), 4, 0.2)
    assert one.most_in_flight == 4
    assert one.kinds == {"": one.sent}
    assert 8 <= one.sent <= 40


# what becomes of answers


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        ("status=503", "http 503"),
        ("bad_request", "http 400"),
        ("error_event", "error event"),
        ("no_done", "cut short"),
        ("close", "cut off"),
        ("half_event_close", "cut off"),
        ("reset", "cut off"),
        ("bad_chunk", "cut off"),
        ("garbage_head", "cut off"),
        ("close_before", "cut off"),
        ("stall", "timeout"),
        ("half_event", "timeout"),
        ("no_answer", "timeout"),
        ("comments", "timeout"),
        ("split", ""),
        ("huge_event", ""),
        ("close_reused", ""),
    ],
)
async def test_each_fault_of_a_stream_has_its_kind_and_only_whole_answers_count(fault, kind):
    async with FakeServer(FakeServerOptions(tokens=6)) as engine:
        engine.set_fault(fault)
        one = await opened(engine.url, [0.0, 0.1], timeout_s=0.3)
    assert one.kinds == {kind: 2}
    assert set(one.explained) == ({kind} if kind else set())


@pytest.mark.parametrize(("fault", "kind"), [("wrong_length", "cut off"), ("status=429", "http 429"), ("split", "")])
async def test_each_fault_of_a_json_answer_has_its_kind(fault, kind):
    async with FakeServer(FakeServerOptions(tokens=6)) as engine:
        engine.set_fault(fault)
        one = await opened(engine.url, [0.0], stream=False)
    assert one.kinds == {kind: 1}


TEXT = b'data: {"choices":[{"delta":{"content":"a"},"finish_reason":"stop"}]}\n\n'


@pytest.mark.parametrize(
    ("body", "content_type", "stream", "kind"),
    [
        (TEXT + b"data: [DONE]\n\n", b"text/event-stream", True, "no usage"),
        (b"data: nonsense\n\n", b"text/event-stream", True, "bad event"),
        (b'data: {"choices": 3}\n\n', b"text/event-stream", True, "bad event"),
        (b"data: [DONE]\n\n", b"text/event-stream", True, "empty"),
        (b'{"choices":[]}', b"application/json", True, "no stream"),
        (b"<html>", b"text/html", False, "bad answer"),
        (b'{"choices":[{"message":{"content":""}}]}', b"application/json", False, "empty"),
        (b'{"choices":[{"message":{"content":"a"}}]}', b"application/json", False, "no usage"),
        (b'{"error":{"message":"x"}}', b"application/json", False, "error answer"),
        (TEXT.replace(b"\n\n", b"\r\n\r\n") + b': ping\r\n\r\ndata: {"usage":{"completion_tokens":1}}\r\n\r\n',
         b"text/event-stream", True, ""),
    ],
)  # fmt: skip
async def test_an_answer_that_is_none_is_never_counted_as_one(body, content_type, stream, kind):
    async with Canned(body, content_type) as url:
        one = await opened(url, [0.0, 0.0], stream=stream)
    assert one.kinds == {kind: 2}


async def test_events_count_as_tokens_where_that_is_asked_for():
    async with Canned(TEXT * 3) as url:
        one = await opened(url, [0.0], count_events=True)
    assert [(sample.kind, sample.output_tokens) for sample in one.samples] == [("", 3)]


async def test_nobody_there_is_a_failure_of_its_own():
    held = socket.create_server(("127.0.0.1", 0))
    port = held.getsockname()[1]
    held.close()
    one = await opened(f"http://127.0.0.1:{port}", [0.0, 0.0])
    assert one.kinds == {"no connection": 2}


async def test_more_than_may_be_on_their_way_are_not_sent_and_counted():
    async with FakeServer(FakeServerOptions(tokens=1, first_ms=100)) as engine:
        one = await opened(engine.url, [0.0] * 5, most_in_flight=2)
    assert one.kinds == {"": 2, "not sent": 3}


async def test_an_interrupted_run_keeps_what_it_has():
    async with FakeServer(FakeServerOptions(tokens=1, first_ms=40)) as engine:
        one = driver(engine.url)
        running = asyncio.create_task(one.open_loop(planned(engine.url, [0.0, 0.0, 0.2, 60.0])))
        while one.kinds[""] < 2 or one.in_flight < 1:
            await asyncio.sleep(0.005)
        one.stop()
        await running
        assert engine.running == 0 or await _soon(lambda: engine.running == 0)
    assert one.kinds == {"": 2, UNFINISHED: 1}
    assert one.stopped


async def _soon(holds, deadline_s=5.0):
    end = asyncio.get_running_loop().time() + deadline_s
    while not holds():
        assert asyncio.get_running_loop().time() < end
        await asyncio.sleep(0.005)
    return True


async def test_the_process_that_listens_is_found_and_watched():
    async with FakeServer() as engine:
        assert use.listening("127.0.0.1", Endpoint(engine.url).port) == os.getpid()
    watcher = use.Watcher(os.getpid(), None)
    told = watcher.end()
    assert told.most_resident_bytes > 10_000_000
    assert told.mean_cores >= 0
    assert use.listening("192.0.2.1", 80) is None
    assert use.Watcher(None, None).end().pid is None


# the command


class Links(HTMLParser):
    """What a page would load, and the tags that are open at its end."""

    def __init__(self):
        super().__init__()
        self.loads, self.plots, self.scripts = [], 0, 0

    def handle_starttag(self, tag, attrs):
        self.loads += [value for name, value in attrs if name in {"src", "href"}]
        self.plots += tag == "svg"
        self.scripts += tag == "script"


async def test_a_run_tells_its_figures_in_four_forms(tmp_path):
    """Repeated twice, with classes, a shared prefix and an SLO: a table, JSON, Markdown and a page of its own."""
    files = [tmp_path / f"x.{kind}" for kind in ("json", "md", "html")]
    async with FakeServer(FakeServerOptions(tokens=4, first_ms=20, gap_ms=5, record=True)) as engine:
        code, out, err = await bench(
            engine.url, "--rate", 60, "--seconds", 0.6, "--repeats", 2, "--workload", "service", "--slo",
            "ttft=2s,tpot=1s", "--class", "interactive=3", "--class", "batch=1", "--shared-prefix", "0.5:40",
            "--json", files[0], "--markdown", files[1], "--html", files[2],
        )  # fmt: skip
        asked = [request for request in engine.requests if request.path == "/v1/chat/completions"]
    assert (code, err) == (0, "")
    report = json.loads(files[0].read_text())
    assert len(report["runs"]) == 2
    for run in report["runs"]:
        assert run["answered"] == run["requests"] > 10
        assert run["within_slo"] == 1
        assert run["latency_s"]["p50"] == pytest.approx(0.035, abs=0.03)
        assert run["output_tokens"] == 4 * run["answered"]
        assert set(run["classes"]) == {"interactive", "batch"}
        assert run["use"]["pid"] == os.getpid()
    assert report["intervals"]["60/s"]["queries_per_s"]["low"] <= report["runs"][0]["queries_per_s"] * 2
    assert {request.headers.get("x-request-type") for request in asked} == {None, "interactive", "batch"}
    for words in ("queries/s", "latency P99", "first token P50", "goodput /s", "class batch", "over the repeats"):
        assert words in out
    assert "| queries/s |" in files[1].read_text()
    page = Links()
    page.feed(files[2].read_text())
    assert (page.loads, page.scripts) == ([], 0)
    assert page.plots >= 5


async def test_a_ramp_finds_the_knee():
    """Two slots of 50 ms are 40 requests a second: it keeps up with 20, not with 60."""
    async with FakeServer(FakeServerOptions(tokens=1, first_ms=50, slots=2)) as engine:
        code, out, _ = await bench(
            engine.url, "--ramp", "20:100:3", "--arrivals", "steady", "--seconds", 0.6, "--workload", "service",
            "--slo", "latency=500ms",
        )  # fmt: skip
    assert code == 0
    assert "Knee: it keeps up with 20/s, and not with the next rate" in out


async def test_a_trace_is_sent_as_it_was_recorded(tmp_path):
    file = tmp_path / "trace.jsonl"
    file.write_text(
        '{"at_s": 0, "class": "a", "prompt_tokens": 30, "output_tokens": 2}\n{"at_s": 1, "stream": false}\n'
    )
    async with FakeServer(FakeServerOptions(tokens=4, record=True)) as engine:
        code, out, err = await bench(engine.url, "--trace", file, "--speed", 10)
        asked = [json.loads(request.body) for request in engine.requests if request.path == "/v1/chat/completions"]
    assert (code, err) == (0, ""), out
    assert [(one["max_tokens"], "stream" in one) for one in asked[2:]] == [(2, True), (256, False)]


async def test_an_slo_nobody_can_meet_is_told_with_the_best_seen():
    async with FakeServer(FakeServerOptions(tokens=2, first_ms=20)) as engine:
        code, out, _ = await bench(
            engine.url, "--concurrency", 2, "--requests", 6, "--slo", "ttft=1ms", "--completions", "--no-stream"
        )
    assert code == 0
    assert "No request was within the SLO (ttft within 1 ms). The best medians seen: whole answer" in out


async def test_nothing_answered_is_exit_code_1_with_the_servers_words():
    async with FakeServer(FakeServerOptions(tokens=2)) as engine:
        engine.set_fault("error_event@1")
        code, out, _ = await bench(engine.url, "--rate", 50, "--requests", 5, "--model", "fake")
    assert code == 1
    assert "5 × error event: the engine has failed" in out


async def test_ctrl_c_tells_what_there_is_and_that_it_is_partial(tmp_path):
    file = tmp_path / "x.json"
    async with FakeServer(FakeServerOptions(tokens=1, first_ms=30, record=True)) as engine:
        process = await asyncio.create_subprocess_exec(
            *BENCH, engine.url, "--rate", "40", "--seconds", "60", "--json", str(file), stdout=subprocess.PIPE
        )
        await _soon(lambda: len(engine.requests) > 12, 30)
        process.send_signal(signal.SIGINT)
        out, _ = await process.communicate()
    assert process.returncode == 130
    assert b"PARTIAL" in out
    report = json.loads(file.read_text())
    assert report["partial"]
    assert report["runs"][0]["partial"]
    assert report["runs"][0]["answered"] >= 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["127.0.0.1:1", "--rate", "5"], "cannot be reached"),
        (["127.0.0.1:1"], "say how requests come"),
        (["127.0.0.1:1", "--rate", "5", "--concurrency", "5"], "say how requests come"),
        (["127.0.0.1:1", "--rate", "5", "--workload", "big"], "--workload: 'big' is none of reference, service, short"),
        (["127.0.0.1:1", "--ramp", "1:9", "--repeats", "2"], "--repeats: a ramp runs each rate once"),
        (["127.0.0.1:1", "--rate", "5", "--warmup", "30"], "--warmup"),
        (["127.0.0.1:1", "--rate", "5", "--extra", "[1]"], "--extra: is not a JSON object"),
        (["127.0.0.1:1", "--trace", "/proc/self/task"], "has no trace.jsonl"),
        (["127.0.0.1:1", "--trace", "/nowhere/x"], "--trace: /nowhere/x cannot be read: No such file or directory"),
        (["127.0.0.1:1", "--rate", "5", "--html", "/nowhere/x"], "/nowhere/x cannot be written"),
        (["127.0.0.1:1", "--rate", "5", "--insecure"], "are for https, and http://127.0.0.1:1 is not"),
        (["https://h", "--rate", "5", "--ca-file", "/nowhere/x"], "--ca-file: /nowhere/x cannot be used: No such file"),
        (
            ["https://h", "--rate", "5", "--ca-file", "/dev/null"],
            "--ca-file: /dev/null cannot be used: it holds no certificate",
        ),
        (["https://h", "--rate", "5", "--ca-file", "/dev/null", "--insecure"], "--insecure: believes anybody"),
    ],
)
def test_bad_input_is_told_in_plain_words(arguments, words, capsys):
    from tidegate.cli import main

    with pytest.raises(SystemExit) as ended:
        main(["bench", "run", *arguments])
    assert ended.value.code == 2
    assert words in capsys.readouterr().err


async def test_a_server_that_wants_a_key_is_told_it(tmp_path):
    key = tmp_path / "key"
    key.write_text("secret\n")
    async with FakeServer(FakeServerOptions(tokens=1, api_key="secret")) as engine:
        refused = await bench(engine.url, "--rate", 20, "--requests", 2, "--model", "fake")
        served = await bench(engine.url, "--rate", 20, "--requests", 2, "--model", "fake", "--api-key-file", key)
    assert refused[0] == 2
    assert "--api-key-file" in refused[2]
    assert (served[0], "secret" in served[1]) == (0, False)
