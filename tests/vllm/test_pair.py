"""Two replicas of a tiny ERNIE on real vLLM, and the same as GGUF on llama.cpp, behind `tidegate up`.

The tests run in their order, on the engines that the first one waits for; the last but one kills a replica.
"""

import json
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import msgspec
import pytest
from plain_ernie import POSITIONS, PRINTABLE, token_id, write_plain_ernie

from tidegate.control.state import AdminAddress, Records
from tidegate.control.steering import Top
from tidegate.types import ReplicaState

pytestmark = pytest.mark.timeout(330)

START_S = 240.0
"""Two engines at once on two cores: 80 to 110 s."""
SLOTS = 4
LONG = POSITIONS - 384
"""Tokens of an answer that is still being made while something is looked at."""
POOLS = """\
[[model]]
name = "plain"
source = "{folder}"
quantisation = "BF16"
[[model]]
name = "plain-gguf"
source = "{folder}"
quantisation = "BF16"
[[pool]]
name = "vllm"
model = "plain"
engine = "vllm"
replicas = 2
[pool.options]
slots = {slots}
context_tokens = {positions}
memory_share = 1.0
args = ["--dtype", "float32"]
[[pool]]
name = "gguf"
model = "plain-gguf"
engine = "llamacpp"
[pool.options]
slots = 1
context_tokens = 1024
threads = 1
"""
KILLED = 8000
"""Tokens of an answer whose engine is killed after a hundred: far more than lie on the way to the client."""
STORY = "Tell me a story about a river."


class Pair:
    """What the tests ask."""

    def __init__(self, site, up, folder):
        self.site, self.up, self.folder = site, up, folder
        self.http = httpx.Client(base_url=site.urls()["api"], trust_env=False, timeout=120)

    def body(self, content=STORY, *, model="plain", **more):
        messages = [{"role": "user", "content": content}]
        return {"model": model, "messages": messages, "temperature": 0, "max_tokens": 32, **more}

    def chat(self, content=STORY, **more):
        answer = self.http.post("chat/completions", json=self.body(content, **more))
        assert answer.status_code == 200, answer.text
        return answer.json()

    def text(self, content=STORY, **more):
        return self.chat(content, **more)["choices"][0]["message"]["content"]

    def engine(self, replica):
        """A client of an engine itself, with the key that it was given."""
        record = Records.load(self.site.home).get(replica)
        headers = {"authorization": f"Bearer {record.api_key}"}
        return httpx.Client(base_url=record.url, headers=headers, trust_env=False, timeout=120)

    def top(self):
        address = msgspec.json.decode((self.site.home.run / "admin.json").read_bytes(), type=AdminAddress)
        headers = {"authorization": f"Bearer {address.token}"}
        answer = httpx.get(f"{address.url}/admin/v1/top", headers=headers, trust_env=False, timeout=10)
        return {one.id: one for one in msgspec.json.decode(answer.content, type=Top).replicas}


def running(engine):
    """What the engine itself counts as running."""
    lines = engine.get("/metrics").text.splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith("vllm:num_requests_running{"))


def waiting(engine):
    """What the engine itself counts as waiting for a slot."""
    lines = engine.get("/metrics").text.splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith("vllm:num_requests_waiting{"))


def seen(top):
    """Whether a replica was last seen at work."""
    return top.id.startswith("vllm-") and top.seen is not None and top.seen.running == 1 and bool(top.seen.kv_usage)


def until(condition, seconds=30.0):
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.05)
    return found


@pytest.fixture(scope="module")
def pair(site, tmp_path_factory):
    folder = write_plain_ernie(tmp_path_factory.mktemp("models") / "plain", seed=1)
    site.settings(POOLS.format(folder=folder, slots=SLOTS, positions=POSITIONS))
    up = site.up()
    up.until(lambda: "] INFO ready " in up.text(), START_S)
    up.until(lambda: all(one.continues for one in site.status().replicas if one.pool == "vllm"), 60)
    return Pair(site, up, folder)


def test_both_replicas_answer_and_say_what_they_are(pair):
    replicas = [one for one in pair.site.status().replicas if one.pool == "vllm"]
    assert [(one.id, one.engine, one.slots, one.context_tokens) for one in replicas] == [
        ("vllm-0", "vllm", SLOTS, POSITIONS),
        ("vllm-1", "vllm", SLOTS, POSITIONS),
    ]
    assert all(one.version and one.version == replicas[0].version for one in replicas)
    answer = pair.chat()
    assert answer["usage"]["completion_tokens"] == 32
    text = answer["choices"][0]["message"]["content"]
    assert len(text) == 32
    assert set(text) <= set(PRINTABLE)
    assert len(set(text)) > 8, "a text that says one thing over and over would hide what is missing"


def test_a_stream_says_what_the_answer_says(pair):
    pieces = []
    with pair.http.stream("POST", "chat/completions", json=pair.body(stream=True)) as answer:
        assert answer.headers["x-tidegate-replica"].startswith("vllm-")
        for line in answer.iter_lines():
            if line.startswith("data: {"):
                choices = json.loads(line[6:])["choices"]
                pieces += [one["delta"].get("content") or "" for one in choices]
            ended = line == "data: [DONE]" or not line
    assert ended
    assert "".join(pieces) == pair.text()


def test_llamacpp_says_the_same_from_the_same_weights(pair):
    assert pair.text(model="plain-gguf", max_tokens=24) == pair.text(max_tokens=24)


def test_a_turn_ends_at_its_own_token_although_the_model_names_another(pair):
    number = token_id(pair.folder, "<|end_of_sentence|>")
    with pair.engine("vllm-0") as engine:
        answer = engine.post("/v1/chat/completions", json=pair.body(logit_bias={str(number): 100})).json()
    choice = answer["choices"][0]
    assert (choice["finish_reason"], answer["usage"]["completion_tokens"]) == ("stop", 1)


def test_a_prompt_that_is_too_long_is_told_with_both_numbers(pair):
    answer = pair.http.post("chat/completions", json=pair.body("x" * (POSITIONS + 500)))
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (400, "context_length_exceeded"), error
    numbers = [int(word) for word in error["message"].replace(",", "").replace(";", " ").split() if word.isdigit()]
    assert POSITIONS in numbers
    assert POSITIONS + 1 in numbers, "vLLM reads no further than it has to"


def test_a_client_that_goes_away_ends_the_work(pair):
    with pair.http.stream("POST", "chat/completions", json=pair.body(stream=True, max_tokens=LONG)) as answer:
        replica = answer.headers["x-tidegate-replica"]
        lines = (line for line in answer.iter_lines() if line.startswith("data: {"))
        for _ in range(5):
            next(lines)
        with pair.engine(replica) as engine:
            assert running(engine) == 1
            answer.close()
            until(lambda: running(engine) == 0, 5)


def test_a_request_that_is_urgent_overtakes_one_that_waits(pair):
    """Lower runs first; the header is the engine's own, and clients of the gateway cannot send it."""
    order, lock = [], threading.Lock()
    with pair.engine("vllm-1") as engine, ThreadPoolExecutor(4 * SLOTS + 2) as pool:

        def ask(name, priority, tokens):
            headers = {"x-vllm-priority": str(priority)}
            answer = engine.post("/v1/chat/completions", json=pair.body(max_tokens=tokens), headers=headers)
            assert answer.status_code == 200, answer.text
            with lock:
                order.append(name)

        held = [pool.submit(ask, "long", 5, 900) for _ in range(4 * SLOTS)]
        until(lambda: waiting(engine) >= 2 * SLOTS)
        later = pool.submit(ask, "later", 9, 4)
        urgent = pool.submit(ask, "urgent", 1, 4)
        for one in (*held, later, urgent):
            one.result()
    assert order.index("urgent") < order.index("later")


def test_what_the_engine_says_of_itself_is_seen(pair):
    """Running requests and the share of the cache in use, as the engine's own metrics say: it is looked at once a second,
    and an answer may end before that, so there is always another."""
    ended = threading.Event()

    def ask_on():
        while not ended.is_set():
            pair.chat(max_tokens=LONG // 2)

    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(ask_on)
        try:
            replica, found = until(lambda: next(((i, top.seen) for i, top in pair.top().items() if seen(top)), None))
        finally:
            ended.set()
        asking.result()
    assert 0 < found.kv_usage < 1
    metrics = httpx.get(f"{pair.site.urls()['api'].removesuffix('/v1')}/metrics", trust_env=False).text
    assert f'replica="{replica}"' in metrics


def test_a_replica_killed_in_mid_stream_is_gone_on_from_and_comes_back(pair):
    """The client sees one answer, equal to the one that nothing has interrupted; the other replica had said the rest."""
    whole = pair.text(max_tokens=KILLED)
    assert len(whole) == KILLED
    pids, pieces = pair.site.pids(), []
    with pair.http.stream("POST", "chat/completions", json=pair.body(stream=True, max_tokens=KILLED)) as answer:
        replica = answer.headers["x-tidegate-replica"]
        for line in answer.iter_lines():
            if not line.startswith("data: {"):
                continue
            event = json.loads(line[6:])
            assert "error" not in event, event
            pieces += [one["delta"].get("content") or "" for one in event["choices"]]
            if len(pieces) == 100:
                os.kill(pids[replica], signal.SIGKILL)
    assert len(pieces) > 100
    assert "".join(pieces) == whole
    up, site = pair.up, pair.site
    until(lambda: '"moves":1' in (site.home.logs / "access.log").read_text())
    up.until(lambda: _of(site, replica).restarts == 1)
    back = up.until(lambda: _of(site, replica) if _of(site, replica).state is ReplicaState.READY else None, START_S)
    assert back.pid not in {pids[replica], None}
    with pair.engine(replica) as engine:
        said = engine.post("/v1/chat/completions", json=pair.body()).json()["choices"][0]["message"]["content"]
    assert said == pair.text()


def _of(site, replica):
    return next(one for one in site.status().replicas if one.id == replica)


def test_everything_ends_with_ctrl_c(pair):
    living = pair.site.living()
    assert len(living) >= 3
    pair.http.close()
    pair.up.interrupt()
    assert pair.up.end(60) == 0
    assert not pair.site.living()
