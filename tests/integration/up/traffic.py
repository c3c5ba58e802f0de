"""Clients that ask all the time, and count every answer that was not right."""

import asyncio
import itertools
import json
import random
import threading
import time

from prometheus_client.parser import text_string_to_metric_families

from gateway.wire import Client

BODY = {"model": "m", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2}


class Traffic:
    """Keep-alive clients, some of them in a hurry and some not, clients with a new connection each time, and a scraper.

    Runs in a thread of its own from `with` to its end. None of the clients ever asks a second time: a connection that
    ends without an answer is a fault, also where it was kept alive.
    """

    def __init__(self, port, *, keeping=4, slow=3, new=3, scrape=True):
        self.answers, self.faults, self.requests = 0, [], 0
        self.scrapes = []
        self.connects = 0
        self._port, self._kinds = port, [0.0] * keeping + [0.15] * slow
        self._new, self._scrape = new, scrape
        self._stop = False
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._stop = True
        self._thread.join(60)
        assert not self._thread.is_alive()

    def more(self, count, seconds=30.0):
        """Wait for so many more answers."""
        goal, deadline = self.answers + count, time.monotonic() + seconds
        while self.answers < goal:
            assert time.monotonic() < deadline, f"{self.answers} of {goal}; {self.faults[:5]}"
            time.sleep(0.01)

    async def _run(self):
        clients = [self._client(pause_s) for pause_s in self._kinds]
        clients += [self._client(0.0, keep=False) for _ in range(self._new)]
        clients += [self._scraper()] if self._scrape else []
        await asyncio.gather(*clients)

    async def _client(self, pause_s, *, keep=True):
        client = None
        while not self._stop:
            body = json.dumps(BODY | {"stream": random.random() < 0.3}).encode()
            try:
                if client is None:
                    client = await Client.connect(self._port)
                    self.connects += 1
                self.requests += 1
                headers = () if keep else ("Connection: close",)
                answer = await asyncio.wait_for(client.ask("POST", "/v1/chat/completions", body, headers), 20)
                if answer.status == 200 and answer.whole and (b"[DONE]" in answer.body or b"choices" in answer.body):
                    self.answers += 1
                else:
                    self.faults.append((answer.status, answer.whole, answer.body[-200:]))
                if answer.headers.get("connection") == "close":
                    await client.close()
                    client = None
            except (OSError, EOFError, TimeoutError) as error:
                self.faults.append(repr(error))
                if client is not None:
                    await client.close()
                client = None
            await asyncio.sleep(pause_s)
        if client is not None:
            await client.close()

    async def _scraper(self):
        while not self._stop:
            try:
                self.scrapes.append(await scrape(self._port))
            except (OSError, EOFError) as error:
                self.faults.append(f"metrics: {error!r}")
            await asyncio.sleep(0.02)


async def scrape(port):
    """Every counter, by name and labels."""
    async with await Client.connect(port) as client:
        answer = await client.ask("GET", "/metrics", headers=("Connection: close",))
    assert answer.status == 200, answer.body
    return counters(answer.body.decode())


def counters(text):
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        if family.type in {"counter", "histogram"}
        for sample in family.samples
    }


def falls(scrapes):
    """The counters that went down from one scrape to the next."""
    return [
        (key, value, later.get(key))
        for earlier, later in itertools.pairwise(scrapes)
        for key, value in earlier.items()
        if later.get(key, 0.0) < value
    ]
