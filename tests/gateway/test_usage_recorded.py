"""What an engine says that an answer cost is recorded, on real sockets, however its events are cut into packets."""

import itertools
import json

import pytest

from gateway.byte_engine import DONE, LAST_CHUNK, STREAM_HEAD, chunk
from gateway.wire import until
from tidegate.types import Outcome

CHAT = "/v1/chat/completions"


def event(**fields):
    return b"data: %b\n\n" % json.dumps({"id": "c", "object": "chat.completion.chunk", "created": 1, **fields}).encode()


def choice(text, finish=None):
    return [{"index": 0, "delta": {"content": text}, "finish_reason": finish}]


USAGE = {"prompt_tokens": 11, "completion_tokens": 3, "total_tokens": 14}
TOKENS = [event(choices=choice(text), usage=None) for text in ("高", "潮")]
LAST = event(choices=choice("", "stop"), usage=None)
COST = event(choices=[], usage=USAGE)
CHUNKS = [*map(chunk, (*TOKENS, LAST, COST, DONE)), LAST_CHUNK]


@pytest.mark.parametrize("wanted", [False, True])
async def test_usage_is_recorded_and_hidden_from_who_did_not_ask_however_packets_are_cut(gateway, engine, wanted):
    cuts = {"at": ()}

    async def script(wire, asked):
        assert asked.json["stream_options"] == {"include_usage": True}
        packets = [STREAM_HEAD]
        for number, piece in enumerate(CHUNKS):
            if number in cuts["at"]:
                packets.append(piece)
            else:
                packets[-1] += piece
        await wire.send(*packets)

    running = await gateway((await engine(script)).view())
    fields = {"model": "m", "messages": [{"role": "user", "content": "x"}], "stream": True}
    if wanted:
        fields["stream_options"] = {"include_usage": True}
    asked = 0
    async with await running.connect() as client:
        for size in range(len(CHUNKS) + 1):
            for cuts["at"] in itertools.combinations(range(len(CHUNKS)), size):
                answer = await client.ask("POST", CHAT, json.dumps(fields).encode())
                assert answer.body == b"".join((*TOKENS, LAST, *([COST] if wanted else []), DONE)), cuts
                asked += 1
    await until(lambda: running.outcomes == {"done": asked}, "every end")
    (usage,) = running.gateway.accounting.take_usage()
    assert (usage.tenant, usage.model, usage.outcome) == ("anonymous", "m", Outcome.DONE)
    assert (usage.requests, usage.prompt_tokens, usage.completion_tokens) == (asked, 11 * asked, 3 * asked)


async def test_a_report_that_was_not_sent_is_told_by_the_next_one(gateway, engine, ask):
    async def script(wire, asked):
        await wire.send(STREAM_HEAD + b"".join(CHUNKS))

    running = await gateway((await engine(script)).view())
    await ask(running, stream=True)
    lost = running.gateway.report()
    assert [one.requests for one in lost.usage] == [1]
    assert running.gateway.report().usage == ()
    running.gateway.unsent(lost)
    await ask(running, stream=True)
    assert [(one.requests, one.completion_tokens) for one in running.gateway.report().usage] == [(2, 6)]
