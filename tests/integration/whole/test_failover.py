"""Two real engines, one killed with SIGKILL under streams: nobody sees it, and the words are those that would have come."""

import json
import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from demo import demo_model_path
from up_site import Site

STREAMS = 50
PROMPTS = (
    "1, 2, 3, 4, 5, 6, 7, 8,",
    "21, 22, 23, 24, 25, 26,",
    "31, 32, 33, 34, 35, 36,",
    "51, 52, 53, 54, 55, 56,",
    "101, 102, 103, 104, 105,",
)
"""What comes next is clear by far: beside others in a batch the last bits of the numbers differ, and a close choice turns."""
TWO = """\
[[model]]
name = "smollm2-135m"
source = "{path}"
[[pool]]
name = "default"
model = "smollm2-135m"
replicas = 2
[pool.options]
slots = 4
context_tokens = 512
threads = 1
"""


@pytest.fixture(scope="module")
def pair():
    site = Site()
    try:
        site.settings(TWO.format(path=demo_model_path()))
        site.up().ready().until(lambda: all(replica.continues for replica in site.status().replicas))
        yield site
    finally:
        site.close()


def stream(client, url, prompt, seen):
    """The text of one greedy stream, and whether it was told to be whole."""
    body = {"model": "smollm2-135m", "prompt": prompt, "max_tokens": 20, "temperature": 0, "stream": True}
    text, done = "", False
    with client.stream("POST", f"{url}/completions", json=body) as answer:
        assert answer.status_code == 200, answer.read()
        for line in answer.iter_lines():
            if line == "data: [DONE]":
                done = True
            elif line.startswith("data: "):
                event = json.loads(line[6:])
                assert "error" not in event, event
                text += event["choices"][0]["text"] if event["choices"] else ""
                seen()
    return text, done


def test_fifty_streams_go_on_with_the_same_words_when_their_engine_is_killed(pair):
    site = pair
    url = site.urls()["api"]
    with httpx.Client(trust_env=False, timeout=120, limits=httpx.Limits(max_connections=STREAMS)) as client:
        whole = {prompt: stream(client, url, prompt, lambda: None)[0] for prompt in PROMPTS}
        pid = site.pids()["default-0"]
        begun = threading.Semaphore(0)
        with ThreadPoolExecutor(STREAMS) as threads:
            asked = [PROMPTS[number % len(PROMPTS)] for number in range(STREAMS)]
            futures = [threads.submit(stream, client, url, prompt, begun.release) for prompt in asked]
            for _ in range(60):  # several streams are in their middle
                assert begun.acquire(timeout=60)
            os.kill(pid, signal.SIGKILL)
            answers = [future.result() for future in futures]
    assert all(done for _, done in answers)
    assert [text for text, _ in answers] == [whole[prompt] for prompt in asked]
    metrics = httpx.get(f"{url.removesuffix('/v1')}/metrics", trust_env=False).text
    assert 'outcome="failed"' not in metrics
