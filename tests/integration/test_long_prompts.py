"""Prompts of 16,384 tokens, one a second, beside short chats, on two engines with continuous batching and real sockets."""

import uvloop

from load.clients import quantile
from load.fronts import fake_engines, tidegate
from load.long_prompts import span

SECONDS, SEED = 12.0, 1
SHARE, FACTOR = 0.95, 2.0
"""Reading such a prompt holds up an engine for 0.8 s, ten times what a chat's first token takes. On a machine at rest the
99th percentile moves by a tenth (`scripts/overload --long`); here others may be at work."""


def pytest_asyncio_loop_factories(config, item):
    """As the data path has it."""
    return {"uvloop": uvloop.new_event_loop}


async def test_long_prompts_do_not_hold_up_the_first_tokens_of_short_chats(tmp_path):
    with fake_engines(tmp_path) as engines, tidegate(tmp_path, engines) as front:
        alone = await span(front.port, SECONDS, SEED, longs=False)
        beside = await span(front.port, SECONDS, SEED, longs=True)
    assert len(beside.chats_s) > 40
    assert (beside.longs_whole, beside.longs) == (12, 12)
    assert quantile(beside.chats_s, SHARE) <= FACTOR * quantile(alone.chats_s, SHARE)
