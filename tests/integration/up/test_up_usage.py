"""What was used is in the table: every request once, with the engine's own counts, whatever ends meanwhile."""

import json
import os
import signal
import threading
import time

import httpx
import pytest

from store.postgres import temporary_cluster

QUESTION = {"model": "m", "messages": [{"role": "user", "content": "How high is the tide today?"}]}


@pytest.fixture(scope="module")
def cluster():
    with temporary_cluster() as url:
        yield url


def ask(api, tokens, *, stream, **more):
    """One answer; what the engine says it used, where the client asked for that."""
    body = {**QUESTION, "max_tokens": tokens, "stream": stream, **more}
    answer = httpx.post(f"{api}/chat/completions", json=body, trust_env=False, timeout=30)
    assert answer.status_code == 200, answer.text
    if not stream:
        return answer.json()["usage"]
    events = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
    return next((event["usage"] for event in events if event.get("usage")), None)


def used(site, *by):
    arguments = [part for name in by for part in ("--by", name)]
    told = site.run("usage", "--json", *arguments)
    assert told.returncode == 0, told.stderr
    return json.loads(told.stdout)


def until_used(site, requests):
    """The report, once so many requests are in it; reports and writes come within seconds."""
    deadline = time.monotonic() + 20
    while not (rows := used(site)) or rows[0]["requests"] < requests:
        assert time.monotonic() < deadline, rows
        time.sleep(0.2)
    return rows


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_every_request_is_in_the_table_with_the_engines_own_counts(site, kind, request):
    if kind == "postgresql":
        site.environ["TIDEGATE_STORE__URL"] = request.getfixturevalue("cluster")
    up = site.up().ready()
    api = site.urls()["api"]
    prompt_tokens = ask(api, 4, stream=False)["prompt_tokens"]
    for tokens in (1, 5, 9):
        assert ask(api, tokens, stream=False)["completion_tokens"] == tokens
        assert ask(api, tokens, stream=True) is None, "a chunk that nobody asked for"
        usage = ask(api, tokens, stream=True, stream_options={"include_usage": True})
        assert (usage["prompt_tokens"], usage["completion_tokens"]) == (prompt_tokens, tokens)
    whole = {"requests": 10, "prompt_tokens": 10 * prompt_tokens, "completion_tokens": 4 + 3 * 15}
    assert until_used(site, 10) == [{"tenant": "anonymous", **whole}]
    ask(api, 7, stream=True)
    up.interrupt()  # before the next report
    assert up.end() == 0
    rows = used(site, "model", "outcome")
    whole = {"requests": 11, "prompt_tokens": 11 * prompt_tokens, "completion_tokens": 4 + 3 * 15 + 7}
    assert rows == [{"model": "m", "outcome": "done", **whole}]


def test_what_is_used_while_control_is_away_is_written_by_the_next_one(site):
    up = site.up().ready()
    api = site.urls()["api"]
    ask(api, 3, stream=True)
    until_used(site, 1)
    os.kill(up.process.pid, signal.SIGKILL)
    up.process.wait(10)
    for _ in range(5):
        ask(api, 3, stream=False)
    again = site.up().ready()
    assert until_used(site, 6)[0]["completion_tokens"] == 18
    again.interrupt()
    assert again.end() == 0
    assert used(site)[0]["requests"] == 6


def test_an_answer_that_ends_in_the_drain_is_counted_and_each_request_has_its_line(site):
    site.settings(gap_ms=60)
    up = site.up().ready()
    api = site.urls()["api"]
    ask(api, 1, stream=False)
    began = threading.Event()

    def read():
        body = {**QUESTION, "max_tokens": 20, "stream": True}
        with httpx.stream("POST", f"{api}/chat/completions", json=body, trust_env=False, timeout=30) as answer:
            for _ in answer.iter_lines():
                began.set()

    reader = threading.Thread(target=read)
    reader.start()
    assert began.wait(10)
    up.interrupt()
    reader.join(20)
    assert up.end() == 0
    assert used(site)[0]["completion_tokens"] == 21
    lines = [json.loads(line) for line in (site.home.logs / "access.log").read_text().splitlines()]
    assert [(one["stream"], one["tokens_out"], one["outcome"], one["replica"]) for one in lines] == [
        (False, 1, "done", "p-0"),
        (True, 20, "done", "p-0"),
    ]
    assert "tide" not in (site.home.logs / "access.log").read_text().replace("tidegate", "")


def test_scanners_and_made_up_models_make_no_series_and_no_flood_of_lines(site):
    site.up().ready()
    base = site.urls()["api"].removesuffix("/v1")
    with httpx.Client(trust_env=False, timeout=30) as client:
        ask(site.urls()["api"], 1, stream=False)
        client.get(f"{base}/.env")
        body = {**QUESTION, "model": "gpt-0"}
        client.post(f"{base}/v1/chat/completions", json=body)
        before = _series(client.get(f"{base}/metrics").text)
        for number in range(1000):
            assert client.get(f"{base}/wp-admin/{number}").status_code == 404
            body["model"] = f"gpt-{number}"
            assert client.post(f"{base}/v1/chat/completions", json=body).status_code == 404
        text = client.get(f"{base}/metrics").text
    assert _series(text) == before
    assert 'tidegate_requests_refused_total{code="unknown_path",status="404"} 1001.0' in text
    assert "gpt-" not in text
    began = time.monotonic()
    while (site.home.logs / "access.log").stat().st_size == 0 and time.monotonic() < began + 10:
        time.sleep(0.05)
    assert len((site.home.logs / "access.log").read_text().splitlines()) < 1000
    assert (site.home.logs / "gateway.log").stat().st_size < 10_000


def _series(text):
    return {line.rpartition(" ")[0] for line in text.splitlines() if line.startswith("tidegate_")}
