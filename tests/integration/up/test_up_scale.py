"""Pools that grow, shrink and hang while clients ask: no request is lost. Several models at once."""

import json
import os
import signal
import threading
import time

import httpx
from traffic import Traffic

POOL = """\
[[pool]]
name = "p"
model = "m"
engine = "fake"
replicas = {replicas}
[pool.options]
tokens = 2
gap_ms = 1
"""
TWO_MODELS = """\
[[pool]]
name = "chat"
model = "m"
engine = "fake"
replicas = 2
[pool.options]
tokens = 2
gap_ms = 0
[[pool]]
name = "embed"
model = "e"
engine = "fake"
[pool.options]
tokens = 2
"""
STUCK = '[gateway]\nlisten = "127.0.0.1:0"\nstuck_s = 2\n[admin]\nlisten = "127.0.0.1:0"\n[chat]\nenabled = false\n'


def port_of(site):
    return httpx.URL(site.urls()["api"]).port


def scale(site, *arguments):
    told = site.run("scale", *arguments)
    assert told.returncode == 0, told.stderr
    return told.stdout


def replicas(site):
    return {one.id: str(one.state) for one in site.status().replicas}


class Streams:
    """Long streams, one after the other, each read to its end."""

    def __init__(self, api, count=6):
        self.whole, self.faults = 0, []
        self._api, self._stop = api, False
        self._threads = [threading.Thread(target=self._run) for _ in range(count)]

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self._stop = True
        for thread in self._threads:
            thread.join(60)

    def more(self, count, seconds=60.0):
        goal, deadline = self.whole + count, time.monotonic() + seconds
        while self.whole < goal:
            assert time.monotonic() < deadline, f"{self.whole} of {goal}; {self.faults[:5]}"
            time.sleep(0.01)

    def _run(self):
        content = "[[tokens:60]] [[gap_ms:20]] Hello"
        body = {"model": "m", "stream": True, "messages": [{"role": "user", "content": content}], "max_tokens": 60}
        with httpx.Client(trust_env=False, timeout=60) as http:
            while not self._stop:
                try:
                    with http.stream("POST", f"{self._api}/chat/completions", json=body) as answer:
                        lines = [line for line in answer.iter_lines() if line.startswith("data: ")]
                except httpx.HTTPError as error:
                    self.faults.append(repr(error))
                    continue
                if answer.status_code == 200 and lines[-1] == "data: [DONE]" and not any('"error"' in x for x in lines):
                    self.whole += 1
                else:
                    self.faults.append((answer.status_code, lines[-2:]))


def test_a_pool_grows_and_shrinks_under_load_and_no_request_is_lost(site):
    site.settings(POOL.format(replicas=3))
    up = site.up().ready()
    with Traffic(port_of(site), scrape=False) as traffic, Streams(site.urls()["api"]) as streams:
        traffic.more(100)
        told = scale(site, "p", 1)
        assert told.startswith("p: 3 -> 1 replicas\ndrained and ended: p-1, p-2\nThis holds until")
        assert replicas(site) == {"p-0": "ready"}
        traffic.more(100)
        told = scale(site, "p", 3)
        assert "begun: p-1, p-2" in told
        assert "p-2 is ready after" in told
        traffic.more(100)
        streams.more(6)
        os.kill(
            up.process.pid, signal.SIGKILL
        )  # a control that takes over knows the number, which is not the settings'
        up.process.wait(10)
        site.settings(POOL.format(replicas=3))
        site.up().ready()
        scale(site, "p", 2)
        traffic.more(100)
        streams.more(6)
    assert not traffic.faults
    assert not streams.faults
    assert site.run("scale").stdout.split() == ["p", "fake", "m", "2", "of", "2", "ready"]


def test_several_models_at_once_and_what_cannot_be_scaled_is_said_in_words(site):
    site.settings(TWO_MODELS)
    up = site.up().ready()
    api = site.urls()["api"]
    assert site.ask(api, model="m")
    embedded = httpx.post(f"{api}/embeddings", json={"model": "e", "input": "x"}, trust_env=False, timeout=10)
    assert (embedded.status_code, embedded.headers["x-tidegate-replica"]) == (200, "embed-0")
    assert {one["id"] for one in httpx.get(f"{api}/models", trust_env=False).json()["data"]} == {"m", "e"}
    told = site.run("scale", "chta", 3)
    assert told.returncode == 2
    assert "there is no pool 'chta'; there are: chat (m, 2 replicas), embed (e, 1 replica)" in told.stderr
    told = site.run("scale", "chat", 0)
    assert told.returncode == 2
    assert "replicas: 0 is not from 1 to 64" in told.stderr
    up.interrupt()
    assert up.end() == 0
    told = site.run("scale", "chat", 3)
    assert told.returncode == 2
    assert "Tidegate is not running here" in told.stderr
    site.settings(TWO_MODELS.replace('"embed"', '"chat"'))
    told = site.run("up")
    assert told.returncode == 2
    assert "there are two pools named 'chat'" in told.stderr


def test_a_replica_that_hangs_is_started_anew_and_its_streams_go_on_elsewhere(site):
    site.settings(POOL.format(replicas=2))
    file = site.home.path / "tidegate.toml"
    file.write_text(STUCK + POOL.format(replicas=2))
    up = site.up().ready()
    pids = site.pids()
    with Streams(site.urls()["api"]) as streams:
        streams.more(4)
        os.kill(pids["p-0"], signal.SIGSTOP)
        up.until(lambda: site.pids()["p-0"] not in {pids["p-0"], None} and replicas(site)["p-0"] == "ready")
        streams.more(6)
    assert not streams.faults
    assert site.pids()["p-1"] == pids["p-1"]
    assert "replica stuck; it is started anew" in up.text()


def test_the_only_replica_is_started_anew_once_it_is_silent_and_not_while_it_is_slow(site):
    site.settings()
    file = site.home.path / "tidegate.toml"
    file.write_text(STUCK + POOL.format(replicas=1))
    up = site.up().ready()
    pid, api = site.pids()["p-0"], site.urls()["api"]
    assert site.ask(
        api, messages=[{"role": "user", "content": "[[first_ms:7000]] slow"}]
    )  # without CPU time, but alive
    assert site.pids()["p-0"] == pid
    os.kill(pid, signal.SIGSTOP)
    body = {"model": "m", "messages": [{"role": "user", "content": "Hello"}]}
    asking = threading.Thread(
        target=lambda: httpx.post(f"{api}/chat/completions", json=body, trust_env=False, timeout=60)
    )
    asking.start()
    up.until(lambda: site.pids()["p-0"] not in {pid, None} and replicas(site)["p-0"] == "ready")
    asking.join()
    assert "it was silent for" in up.text()
    assert site.ask(api)


def test_the_admin_port_scales_and_refuses_what_is_no_size(site):
    site.settings(POOL.format(replicas=1))
    site.up().ready()
    address = json.loads((site.home.run / "admin.json").read_text())
    headers = {"authorization": f"Bearer {address['token']}"}
    with httpx.Client(base_url=address["url"], headers=headers, trust_env=False, timeout=30) as http:
        answer = http.post("/admin/v1/pools/p/scale", json={"replicas": 2})
        assert answer.json() == {"pool": "p", "before": 1, "replicas": 2, "begun": ["p-1"], "gone": []}
        assert http.post("/admin/v1/pools/p/scale", json={"replicas": "2"}).status_code == 400
        assert http.post("/admin/v1/pools/p/scale", json={"size": 2}).status_code == 400
        missing = http.post("/admin/v1/pools/q/scale", json={"replicas": 2})
        assert (missing.status_code, missing.json()["error"]["code"]) == (404, "no_such_pool")
        assert http.get("/admin/v1/pools/p/scale").status_code == 405
    assert httpx.post(f"{address['url']}/admin/v1/pools/p/scale", json={}, trust_env=False).status_code == 401
