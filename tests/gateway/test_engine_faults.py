"""Engines that go, break, or were never there: what the client sees, and what is counted."""

import asyncio
import json

import pytest

from gateway.byte_engine import DONE, LAST_CHUNK, STREAM_HEAD, ByteEngine, answers, chunk, event, json_head, streams
from gateway.wire import listening_socket
from tidegate.types import FleetSnapshot, GatewayOptions, ModelView, ReplicaState, ReplicaView

CHAT = "/v1/chat/completions"
BODY = json.dumps({"model": "m", "messages": [{"role": "user", "content": "x"}]}).encode()
STREAM = json.dumps({"model": "m", "messages": [{"role": "user", "content": "x"}], "stream": True}).encode()


def nobody(name: str) -> ReplicaView:
    """A replica whose port nobody listens on."""
    sock = listening_socket()
    port = sock.getsockname()[1]
    sock.close()
    one = ByteEngine()
    one.port = port
    return one.view(name)


async def breaks(wire, asked):
    """Takes the request and closes without a word."""
    wire.close()


@pytest.mark.parametrize("body", [BODY, STREAM])
async def test_a_replica_that_cannot_be_reached_is_passed_over(gateway, engine, body):
    one = await engine(streams(DONE) if body is STREAM else answers(b"{}"))
    running = await gateway(nobody("pool-0"), one.view("pool-1"))
    running.gateway.flights.random = lambda: 0.0
    async with await running.connect() as client:
        for _ in range(5):
            answer = await client.ask("POST", CHAT, body)
            assert (answer.status, answer.headers["x-tidegate-replica"]) == (200, "pool-1")
    assert running.outcomes == {"done": 5}
    assert running.replica("pool-0").requests == 1, "it is not asked again at once"


async def test_all_replicas_down_is_503_with_retry_after(gateway):
    running = await gateway(nobody("pool-0"), nobody("pool-1"))
    async with await running.connect() as client:
        for _ in range(3):
            answer = await client.ask("POST", CHAT, BODY)
            assert answer.status == 503
            assert int(answer.headers["retry-after"]) >= 1
            assert int(answer.headers["retry-after-ms"]) >= 1
            error = json.loads(answer.body)["error"]
            assert (error["code"], error["type"]) == ("no_replica_ready", "service_unavailable")
    assert running.outcomes == {"failed": 3}


async def test_a_replica_that_comes_back_is_served_at_once(gateway, engine):
    one = await engine()
    await one.stop()
    running = await gateway(one.view())
    async with await running.connect() as client:
        assert (await client.ask("POST", CHAT, BODY)).status == 503
        await one.start()
        assert (await client.ask("POST", CHAT, BODY)).status == 200


async def test_an_unreachable_replica_is_asked_by_no_request_while_there_is_another(gateway, engine):
    one = await engine()
    running = await gateway(nobody("pool-0"), one.view("pool-1"))
    running.gateway.flights.random = lambda: 0.0
    async with await running.connect() as client:
        for _ in range(8):
            assert (await client.ask("POST", CHAT, BODY)).status == 200
    assert running.replica("pool-0").requests == 1


async def test_a_replica_that_breaks_before_its_first_byte_is_replaced_by_another(gateway, engine):
    bad, good = await engine(breaks), await engine()
    running = await gateway(bad.view("pool-0"), good.view("pool-1"))
    running.gateway.flights.random = lambda: 0.0
    async with await running.connect() as client:
        answer = await client.ask("POST", CHAT, BODY)
        assert (answer.status, answer.headers["x-tidegate-replica"]) == (200, "pool-1")
    assert (len(bad.asked), len(good.asked)) == (1, 1)
    assert (running.replica("pool-0").failures, running.replica("pool-1").failures) == (1, 0)


@pytest.mark.parametrize(
    "data",
    [b"", b"HTTP/1.1 200 OK\r\nContent-", b"SSH-2.0-OpenSSH\r\n\r\n", json_head(50) + b'{"half":', b"\x00" * 70_000,
     STREAM_HEAD + b"zz\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab"],
)  # fmt: skip
async def test_an_engine_alone_that_breaks_its_answer_is_502(gateway, engine, data):
    async def script(wire, asked):
        await wire.send(data)
        wire.close()

    one = await engine(script)
    running = await gateway(one.view())
    async with await running.connect() as client:
        answer = await client.ask("POST", CHAT, BODY)
        if answer.status == 200:  # the head of the stream had left
            assert b'"code":"engine_failed"' in answer.body
        else:
            assert (answer.status, json.loads(answer.body)["error"]["code"]) == (502, "engine_failed")
            assert answer.headers["x-request-id"]
    assert running.outcomes == {"failed": 1}


async def test_an_engine_that_closes_as_soon_as_it_is_connected_is_no_replica(gateway):
    async def slam(reader, writer):
        writer.transport.abort()

    server = await asyncio.start_server(slam, "127.0.0.1", 0)
    one = ByteEngine()
    one.port = server.sockets[0].getsockname()[1]
    running = await gateway(one.view())
    async with await running.connect() as client:
        for _ in range(20):
            assert (await client.ask("POST", CHAT, BODY)).status in {502, 503}
    server.close()
    await server.wait_closed()


@pytest.mark.parametrize("how", ["close", "reset"])
@pytest.mark.parametrize("body", [BODY, STREAM])
async def test_a_kept_connection_that_closes_under_a_request_is_not_seen_by_the_client(gateway, engine, how, body):
    """The engine closes its kept connection just when the next request has been written on it."""
    state = {"close": False}

    async def script(wire, asked):
        if state["close"]:
            state["close"] = False
            getattr(wire, how)()
            return
        await (streams(event("a"), DONE) if body is STREAM else answers(b'{"a":1}'))(wire, asked)

    one = await engine(script)
    running = await gateway(one.view())
    async with await running.connect() as client:
        await client.ask("POST", CHAT, body)
        state["close"] = True
        answer = await client.ask("POST", CHAT, body)
        assert (answer.status, answer.whole) == (200, True)
    assert len(one.asked) == 3, "sent once more, and once only"
    assert running.replica().failures == 0
    assert running.outcomes == {"done": 2}


async def test_a_stream_that_breaks_ends_with_an_error_event_and_without_done(gateway, engine):
    async def script(wire, asked):
        await wire.send(STREAM_HEAD, chunk(event("盘")), chunk(event("古")[:30]))
        wire.reset()

    one = await engine(script)
    running = await gateway(one.view())
    async with await running.connect() as client:
        answer = await client.ask("POST", CHAT, STREAM)
        assert answer.whole, "the connection goes on"
        assert answer.body.startswith(event("盘"))
        last = answer.body.removeprefix(event("盘"))
        assert last.startswith(b"data: ")
        error = json.loads(last.removeprefix(b"data: "))["error"]
        assert (error["code"], error["type"], error["param"]) == ("engine_failed", "engine_error", None)
        assert b"[DONE]" not in answer.body
        assert (await client.ask("GET", "/health")).status == 200
    assert running.outcomes == {"failed": 1}
    assert running.replica().failures == 1


async def test_the_error_event_is_an_event_of_its_own_also_in_the_middle_of_another(gateway, engine):
    async def script(wire, asked):
        await wire.send(STREAM_HEAD, chunk(b"data: " + b"x" * 100_000))
        wire.reset()

    one = await engine(script)
    running = await gateway(one.view())
    async with await running.connect() as client:
        answer = await client.ask("POST", CHAT, STREAM)
        assert json.loads(answer.body.split(b"\n\n")[-2].removeprefix(b"data: "))["error"]["code"] == "engine_failed"


async def test_a_small_json_answer_that_breaks_is_asked_of_another_replica(gateway, engine):
    async def script(wire, asked):
        await wire.send(json_head(1000) + b'{"half": ')
        wire.reset()

    bad, good = await engine(script), await engine(answers(b'{"whole":true}'))
    running = await gateway(bad.view("pool-0"), good.view("pool-1"))
    running.gateway.flights.random = lambda: 0.0
    async with await running.connect() as client:
        answer = await client.ask("POST", CHAT, BODY)
        assert (answer.status, answer.body) == (200, b'{"whole":true}')


async def test_a_large_json_answer_that_breaks_cuts_the_connection(gateway, engine):
    """Some of it had flowed: nothing but the connection's end can say that it is not whole."""

    async def script(wire, asked):
        await wire.send(json_head(1_000_000) + b'"' + b"x" * 300_000)
        wire.reset()

    one = await engine(script)
    running = await gateway(one.view())
    async with await running.connect() as client:
        answer = await client.ask("POST", CHAT, BODY)
        assert (answer.status, answer.whole) == (200, False)
        assert len(answer.body) > 256 * 1024
    assert running.outcomes == {"failed": 1}


async def test_a_large_json_answer_flows_whole(gateway, engine):
    body = b'"' + b"x" * 5_000_000 + b'"'
    one = await engine(answers(body))
    running = await gateway(one.view())
    async with await running.connect() as client:
        answer = await client.ask("POST", CHAT, BODY)
        assert (answer.body, answer.whole) == (body, True)
        assert (await client.ask("POST", CHAT, BODY)).body == body


@pytest.mark.parametrize(
    "status", ["400 Bad Request", "404 Not Found", "422 Unprocessable", "429 Too Many", "529 Busy"]
)
async def test_an_engines_refusal_is_passed_on_as_it_is_and_is_no_fault_of_the_replica(gateway, engine, status):
    body = b'{"error":{"message":"\xe7\x9b\x98","type":"BadRequestError","param":null,"code":400}}'
    one = await engine(answers(body, status, "Retry-After: 7", "X-Engine: secret"))
    running = await gateway(one.view())
    async with await running.connect() as client:
        for wanted in (BODY, STREAM):
            answer = await client.ask("POST", CHAT, wanted)
            assert (answer.status, answer.body) == (int(status[:3]), body)
            assert answer.headers["content-type"] == "application/json"
            assert answer.headers["retry-after"] == "7"
            assert "x-engine" not in answer.headers
    assert running.replica().failures == 0


async def test_what_an_engine_says_too_much_closes_its_connection_only(gateway, engine):
    async def script(wire, asked):
        await wire.send(json_head(2) + b"{}HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil")

    one = await engine(script)
    running = await gateway(one.view())
    async with await running.connect() as client:
        for _ in range(3):
            assert (await client.ask("POST", CHAT, BODY)).body == b"{}"
    assert len(one.wires) == 3


async def test_interim_answers_are_skipped(gateway, engine):
    async def script(wire, asked):
        await wire.send(
            b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + json_head(2), b"{}"
        )

    one = await engine(script)
    running = await gateway(one.view())
    async with await running.connect() as client:
        assert (await client.ask("POST", CHAT, BODY)).body == b"{}"


async def test_a_replica_that_is_not_ready_is_never_asked(gateway, engine):
    ones = [await engine() for _ in ReplicaState]
    views = [one.view(state.value, state=state) for one, state in zip(ones, ReplicaState, strict=True)]
    running = await gateway(*views)
    async with await running.connect() as client:
        for _ in range(10):
            answer = await client.ask("POST", CHAT, BODY)
            assert answer.headers["x-tidegate-replica"] == "ready"


async def test_no_replica_ready_is_503_and_counted_as_a_refusal(gateway, engine):
    one = await engine()
    running = await gateway(one.view(state=ReplicaState.WARMING))
    async with await running.connect() as client:
        answer = await client.ask("POST", CHAT, BODY)
        assert (answer.status, "retry-after" in answer.headers) == (503, True)
    assert running.gateway.metrics.refused == {(503, "no_replica_ready"): 1}
    assert not one.asked


async def test_a_replica_that_is_drained_finishes_what_it_has(gateway, engine):
    go_on = asyncio.Event()

    async def script(wire, asked):
        await wire.send(STREAM_HEAD, chunk(event("a")))
        await go_on.wait()
        await wire.send(chunk(DONE), LAST_CHUNK)

    old, new = await engine(script), await engine()
    running = await gateway(old.view("pool-0"))
    async with await running.connect() as client, await running.connect() as next_client:
        client.request("POST", CHAT, STREAM)
        await client.head()
        assert await client.chunk() == event("a")
        options = GatewayOptions()
        views = (old.view("pool-0", state=ReplicaState.DRAINING), new.view("pool-1"))
        running.gateway.apply(FleetSnapshot(number=2, models=(ModelView("m"),), replicas=views, options=options))
        assert (await next_client.ask("POST", CHAT, BODY)).headers["x-tidegate-replica"] == "pool-1"
        running.gateway.apply(FleetSnapshot(number=3, models=(ModelView("m"),), replicas=views[1:], options=options))
        go_on.set()
        assert await client.chunk() == DONE
        assert await client.chunk() == b""
    assert running.outcomes == {"done": 2}


async def test_a_replica_that_moved_starts_with_nothing_of_its_past(gateway, engine):
    old, new = await engine(), await engine()
    running = await gateway(old.view())
    async with await running.connect() as client:
        await client.ask("POST", CHAT, BODY)
        running.replica().in_flight = 5
        running.gateway.apply(FleetSnapshot(number=2, models=(ModelView("m"),), replicas=(new.view(),)))
        assert (running.replica().in_flight, running.replica().requests) == (0, 0)
        await client.ask("POST", CHAT, BODY)
    assert (len(old.asked), len(new.asked)) == (1, 1)


async def test_a_replica_that_left_ready_keeps_no_idle_connection(gateway, engine):
    one = await engine()
    running = await gateway(one.view())
    async with await running.connect() as client:
        await client.ask("POST", CHAT, BODY)
        failed = one.view(state=ReplicaState.FAILED)
        running.gateway.apply(FleetSnapshot(number=2, models=(ModelView("m"),), replicas=(failed,)))
        running.gateway.apply(FleetSnapshot(number=3, models=(ModelView("m"),), replicas=(one.view(),)))
        await client.ask("POST", CHAT, BODY)
    assert len(one.wires) == 2
