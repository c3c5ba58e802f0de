"""Many clients before engines that break, all in memory: nobody ever gets a byte of another's answer, nor a text with a gap.

Every request carries a marker, every token of its answer begins with it, and the whole answer follows from the marker
alone; so any engine can begin it or go on with it, and whatever a client holds can be judged by itself.
"""

import asyncio
import json
import random
import re
from collections import Counter, deque
from dataclasses import dataclass, field

from fuzz.mutation import Mutator
from fuzz.wires import Wire
from tidegate.gateway.app import Gateway
from tidegate.gateway.fleet import Replica
from tidegate.http import Connection
from tidegate.http.connection import ServerConnection
from tidegate.types import DialectName, FleetSnapshot, GatewayOptions, ModelView, ProcessId, ReplicaState, ReplicaView

MARKER = re.compile(r"mk[0-9a-f]{8}")
TOKENS = (
    b"\r\n",
    b"\n\n",
    b"\n",
    b"0\r\n\r\n",
    b"5\r\n",
    b"\xff",
    b"\0",
    b"data: ",
    b"data: x\n\n",
    b": c\n\n",
    b"HTTP/1.1 200 OK\r\n",
)
SURPLUS = "mkffffffff"
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
DIALECTS = (DialectName.VLLM, DialectName.VLLM, DialectName.LLAMACPP)


def tokens_of(marker: str) -> list[str]:
    """The whole answer to a request."""
    return [f"{marker}·{number}。\n" for number in range(1 + int(marker[2:4], 16) % 12)]


def chunk(payload: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(payload), payload)


@dataclass
class Request:
    marker: str
    path: str
    stream: bool
    usage: bool
    damaged: bool = False
    """Whether an engine has sent something of it that was not what the engine meant."""

    def raw(self) -> bytes:
        asked = {"model": "m", "stream": self.stream}
        asked |= (
            {"prompt": f"{self.marker}|"}
            if self.path == COMPLETIONS
            else {"messages": [{"role": "user", "content": self.marker}]}
        )
        if self.usage:
            asked["stream_options"] = {"include_usage": True}
        body = json.dumps(asked).encode()
        return (
            b"POST %b HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
            % (
                self.path.encode(),
                len(body),
                body,
            )
        )


class Upstream:
    """One connection to an engine, and the engine's end of it."""

    def __init__(self, storm: "Storm", replica: Replica) -> None:
        self.storm, self.wire, self.connection = storm, Wire(), Connection(replica.endpoint)
        self.connection.connection_made(self.wire)
        self.queue: deque[bytes | None] = deque()
        """What is still to be sent; None closes."""
        self.lost = False

    def step(self) -> None:
        if self.wire.closed:
            self.lost = True
            self.connection.connection_lost(None)
        elif not self.queue:
            self._take_request()
        elif self.wire.reading:
            piece = self.queue.popleft()
            if piece is None:
                self.lost = True
                self.connection.connection_lost(self.storm.rng.choice((None, ConnectionResetError())))
            else:
                self.connection.data_received(piece)

    def _take_request(self) -> None:
        head, end, rest = bytes(self.wire.sent).partition(b"\r\n\r\n")
        if not end:
            if self.storm.rng.random() < 0.01:
                self.queue.append(None)
            return
        length = int(re.search(rb"content-length: (\d+)", head)[1])
        if len(rest) < length:
            return
        del self.wire.sent[: len(head) + 4 + length]
        assert not self.wire.sent, "one request at a time"
        self.queue.extend(self.storm.answer(head.split(b" ")[1].decode(), json.loads(rest[:length])))


class Client:
    """One client, its requests, and what it got."""

    def __init__(self, storm: "Storm", requests: list[Request]) -> None:
        self.storm, self.requests, self.wire = storm, requests, Wire()
        self.connection = ServerConnection(storm.gateway.server)
        self.connection.connection_made(self.wire)
        self.queue = deque(storm.mutator.pieces(b"".join(request.raw() for request in requests)))
        self.lost = self.slow = False

    @property
    def left(self) -> int:
        return len(self.requests) - len(read_answers(bytes(self.wire.sent)))

    def step(self) -> None:
        rng = self.storm.rng
        if self.wire.closed:
            self.lose()
        elif self.slow or (rng.random() < 0.02 and self.wire.sent):
            self.slow = not self.slow
            (self.connection.pause_writing if self.slow else self.connection.resume_writing)()
        elif rng.random() < 0.003:
            self.wire.closed = True
            self.lose()
        elif self.queue and self.wire.reading:
            self.connection.data_received(self.queue.popleft())

    def lose(self) -> None:
        if not self.lost:
            self.lost = True
            self.connection.connection_lost(None)

    def judge(self, seen: Counter[str]) -> None:
        """Everything it got is its own; undamaged answers are whole, or say that they are not."""
        answers = read_answers(bytes(self.wire.sent), partial=True)
        assert len(answers) <= len(self.requests)
        for request, (status, body, whole) in zip(self.requests, answers, strict=False):
            found = set(MARKER.findall(body.decode("utf-8", "replace"))) - {request.marker}
            strangers = found & {*self.storm.requests, SURPLUS}
            assert not strangers, f"bytes of {strangers} in the answer to {request.marker}"
            kind = "stream" if request.stream else "json"
            if request.damaged or status != 200:
                seen[f"{kind} damaged" if request.damaged else f"{kind} {status}"] += 1
            elif request.stream:
                self._judge_stream(request, body, whole=whole, seen=seen)
            elif whole:
                assert said(json.loads(body)) == "".join(tokens_of(request.marker))
                seen["json whole"] += 1

    def _judge_stream(self, request: Request, body: bytes, *, whole: bool, seen: Counter[str]) -> None:
        events = [event.removeprefix(b"data: ") for event in body.split(b"\n\n")]
        rest = events.pop()
        assert not (whole and rest), "half an event"
        done, error, text, usages = b"[DONE]" in events, False, "", 0
        for event in events:
            if event and event != b"[DONE]":
                fields = decoded(event, body)
                error = error or "error" in fields
                usages += bool(fields.get("usage"))
                text += said(fields)
        expected = "".join(tokens_of(request.marker))
        assert expected.startswith(text), f"a gap or a repetition: {text!r}"
        assert not (done and error)
        if done:
            assert text == expected
            assert usages <= request.usage, "usage is told to those who asked"
            assert events[-1] == b"[DONE]"
        assert not whole or done or error, "a stream ended without a word"
        seen["stream whole" if done else "stream error" if error else "stream of a client that went"] += 1


def decoded(event: bytes, body: bytes) -> dict:
    try:
        return json.loads(event)
    except ValueError:
        raise AssertionError(f"not an event: {event!r} in {body!r}") from None


def said(fields: dict) -> str:
    """The text in an event or an answer."""
    text = ""
    for choice in fields.get("choices") or ():
        holder = choice.get("delta") or choice.get("message") or {}
        text += holder.get("content") or choice.get("text") or ""
    return text


def read_answers(data: bytes, *, partial: bool = False) -> list[tuple[int, bytes, bool]]:
    """Status, body, and whether it is whole, of every answer."""
    answers = []
    while data:
        head, end, rest = data.partition(b"\r\n\r\n")
        if not end:
            break
        status, body, whole = int(head[9:12]), b"", False
        if b"\r\ntransfer-encoding: chunked" in head:
            while not whole:
                size, end, more = rest.partition(b"\r\n")
                if not end or len(more) < int(size, 16) + 2:
                    break
                body, rest, whole = body + more[: int(size, 16)], more[int(size, 16) + 2 :], int(size, 16) == 0
        else:
            length = int(re.search(rb"\r\ncontent-length: (\d+)", head)[1])
            body, rest, whole = rest[:length], rest[length:], len(rest) >= length
        if not (whole or partial):
            break
        answers.append((status, body, whole))
        data = rest if whole else b""
    return answers


@dataclass
class Storm:
    """One run: its clients, its engines, and the dice."""

    rng: random.Random
    gateway: Gateway
    requests: dict[str, Request] = field(default_factory=dict)
    upstreams: list[Upstream] = field(default_factory=list)
    clients: list[Client] = field(default_factory=list)
    answered: int = 0

    def __post_init__(self) -> None:
        self.mutator = Mutator(self.rng, (b"data: x\n\n",), TOKENS)
        for replica in self.gateway.fleet.replicas.values():
            replica.endpoint.connect = self._connector(replica)

    def _connector(self, replica: Replica):
        async def connect() -> Connection:
            upstream = Upstream(self, replica)
            self.upstreams.append(upstream)
            return upstream.connection

        return connect

    def add_client(self) -> None:
        requests = []
        for _ in range(self.rng.choice((1, 1, 2, 4))):
            marker = f"mk{self.rng.getrandbits(32):08x}"
            path = self.rng.choice((CHAT, CHAT, COMPLETIONS))
            request = Request(marker, path, stream=self.rng.random() < 0.7, usage=False)
            request.usage = request.stream and self.rng.random() < 0.3
            self.requests[marker] = request
            requests.append(request)
        self.clients.append(Client(self, requests))

    def answer(self, path: str, asked: dict) -> list[bytes | None]:
        """What an engine sends, cut in pieces, and what befalls it on the way."""
        self.answered += 1
        rng = self.rng
        marker = MARKER.search(json.dumps(asked))[0]
        request = self.requests[marker]
        fate = rng.random()
        if fate < 0.03:
            status = rng.choice((b"400 Bad Request", b"500 Internal Server Error", b"503 Service Unavailable"))
            body = b'{"error":{"message":"%b"}}' % marker.encode()
            return [
                b"HTTP/1.1 %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
                % (status, len(body), body)
            ]
        raw = self._sound(request, path, asked)
        ends: list[bytes | None] = []
        if fate < 0.2:
            raw, ends = raw[: rng.randrange(len(raw))], [None]
        elif fate < 0.27:
            request.damaged = True
            raw, ends = self.mutator.damage(raw), [None]
        elif fate < 0.3:
            surplus = rng.choice((b"x", b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n" + SURPLUS.encode()))
            pieces = self.mutator.pieces(raw)
            return [*pieces[:-1], pieces[-1] + surplus]  # in a packet of its own nobody could tell it from an answer
        elif fate < 0.35:
            ends = [None]
        return [*self.mutator.pieces(raw), *ends]

    def _sound(self, request: Request, path: str, asked: dict) -> bytes:
        begun = asked["prompt"].partition("|")[2] if path == COMPLETIONS else ""
        if path == CHAT and asked["messages"][-1]["role"] == "assistant":
            begun = asked["messages"][-1]["content"]
        whole = "".join(tokens_of(request.marker))
        assert request.damaged or whole.startswith(begun), "an engine is asked to go on with what was never said"
        rest = whole.removeprefix(begun)
        tokens = rest.splitlines(keepends=True)
        usage = {"prompt_tokens": 1, "completion_tokens": len(tokens), "total_tokens": 1 + len(tokens)}
        head = {"id": request.marker, "object": "x", "created": 1, "model": "m"}
        holder = (lambda text: {"text": text}) if path == COMPLETIONS else (lambda text: {"delta": {"content": text}})
        if not asked.get("stream"):
            choice = {"index": 0, "finish_reason": "stop"}
            choice |= {"text": rest} if path == COMPLETIONS else {"message": {"role": "assistant", "content": rest}}
            body = json.dumps({**head, "choices": [choice], "usage": usage}, ensure_ascii=False).encode()
            return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (
                len(body),
                body,
            )
        last = self.rng.random() < 0.5  # where the reason stands decides how an event ends
        none = {"finish_reason": None}
        events = [{"index": 0, **({} if last else none), **holder(token), **none} for token in tokens]
        if path == CHAT:
            events.insert(0, {"index": 0, "delta": {"role": "assistant", "content": ""}, **none})
        events.append({"index": 0, "finish_reason": "stop", **holder("")})
        lines = [
            {"choices": [event], **head} if self.rng.random() < 0.1 else {**head, "choices": [event]}
            for event in events
        ]
        if (asked.get("stream_options") or {}).get("include_usage"):
            lines.append({**head, "choices": [], "usage": usage})
        separators = self.rng.choice(((",", ":"), (", ", ": ")))  # as C++ and Rust write it, and as Python does
        written = (json.dumps(line, ensure_ascii=False, separators=separators) for line in lines)
        sse = [f"data: {one}\n\n".encode() for one in written] + [b"data: [DONE]\n\n"]
        if self.rng.random() < 0.3:
            sse = self.mutator.pieces(b"".join(sse))
        return (
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n%b0\r\n\r\n"
            % b"".join(map(chunk, sse))
        )

    async def blow(self, seen: Counter[str]) -> None:
        """Step whoever has something to do, in any order, until nobody has."""
        for _ in range(self.rng.randrange(2, 9)):
            self.add_client()
        idle = 0
        while idle < 50:
            await asyncio.sleep(0)
            movable = [one for one in (*self.upstreams, *self.clients) if not one.lost]
            for one in self.rng.sample(movable, len(movable)):
                one.step()
            waiting = any(not c.lost and (c.queue or c.slow or c.left) for c in self.clients)
            idle = 0 if waiting else idle + 10
        for client in self.clients:
            client.lose()
            client.judge(seen)
        for upstream in self.upstreams:
            if not upstream.lost:
                upstream.connection.connection_lost(None)
        assert not self.gateway.metrics.in_flight
        assert not any(replica.in_flight for replica in self.gateway.fleet.replicas.values())
        assert not self.gateway.server.connections
        assert not any(replica.endpoint.connections for replica in self.gateway.fleet.replicas.values())


async def storm(seed: int, seen: Counter[str]) -> int:
    """One storm; how many requests were asked in it."""
    loop = asyncio.get_running_loop()
    faults: list[dict] = []
    loop.set_exception_handler(lambda _, context: faults.append(context))
    rng = random.Random(seed)
    dialect = rng.choice(DIALECTS)
    views = tuple(
        ReplicaView(f"pool-{n}", "pool", "m", f"http://127.0.0.1:{n + 1}", dialect, ReplicaState.READY, version="v")
        for n in range(rng.randrange(1, 5))
    )
    options = GatewayOptions(keep_stream_bytes=rng.choice((400, 1_000_000)))
    snapshot = FleetSnapshot(1, (ModelView("m"),), views, options=options)
    gateway = Gateway(snapshot, listen_host="127.0.0.1", process=ProcessId(1, 0))
    gateway.flights.random = rng.random
    gateway.flights.later = lambda _, flight: loop.call_later(0, flight.ask_again)
    blown = Storm(rng, gateway)
    try:
        await asyncio.wait_for(blown.blow(seen), 20)
    finally:
        await gateway.close(0)
    assert not faults, faults
    seen["asked of engines"] += blown.answered
    return len(blown.requests)


def run(seed: int, inputs: int, seen: Counter[str]) -> None:
    """So many requests; the first storm that fails is told with what repeats it."""

    async def storms() -> None:
        asked, number = 0, seed * 1_000_000
        while asked < inputs:
            try:
                asked += await storm(number, seen)
            except Exception as error:
                raise AssertionError(f"storm {number}: {error!r}") from error
            number += 1

    asyncio.run(storms())
