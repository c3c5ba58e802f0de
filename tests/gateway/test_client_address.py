"""The access log knows where a request came from, also once its client has gone."""

import pytest

from gateway.byte_engine import STREAM_HEAD, chunk, event
from gateway.conftest import key_view
from gateway.wire import until
from tidegate.types import GatewayOptions, Outcome

SECRET = "sk-tg-" + "s" * 43


def recorded(running):
    records = []
    tell = running.gateway.flights._record
    running.gateway.flights._record = lambda record: (records.append(record), tell(record))
    return records


@pytest.mark.parametrize(
    ("trusted", "client"), [((), "127.0.0.1"), (("127.0.0.1/32",), "192.0.2.7"), (("198.51.100.0/24",), "127.0.0.1")]
)
async def test_it_is_the_peers_or_what_a_trusted_proxy_says(gateway, engine, ask, trusted, client):
    options = GatewayOptions(trusted_proxies=trusted)
    running = await gateway((await engine()).view(), options=options, keys=(key_view(SECRET),), keys_required=True)
    records = recorded(running)
    answer = await ask(running, headers=(f"Authorization: Bearer {SECRET}", "X-Forwarded-For: 203.0.113.9, 192.0.2.7"))
    assert answer.status == 200, answer.body
    assert [record.client for record in records] == [client]


async def test_who_goes_in_the_middle_of_a_stream_is_known_too(gateway, engine):
    async def script(wire, asked):
        await wire.send(STREAM_HEAD, chunk(event("a")))
        await wire.until_gone()

    running = await gateway((await engine(script)).view())
    records = recorded(running)
    client = await running.connect()
    client.request(
        "POST", "/v1/chat/completions", b'{"model":"m","messages":[{"role":"user","content":"hi"}],"stream":true}'
    )
    await client.head()
    client.reset()
    await until(lambda: records)
    assert (records[0].outcome, records[0].client) == (Outcome.CANCELLED, "127.0.0.1")
