"""Addresses of a name become engines and go again; a resolver that fails changes nothing."""

import asyncio
import socket

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from tidegate.config import DnsSettings
from tidegate.fleet import dns
from tidegate.fleet.dns import Name, Names, label, merge, url_of


def settings(**more):
    return DnsSettings(name="engines.example:8000", interval_s=0.1, **more)


class Zone:
    """A resolver that says what it is told to."""

    def __init__(self, *addresses):
        self.addresses = addresses
        self.asked = []

    async def resolve(self, name, port):
        self.asked.append((name, port))
        if isinstance(self.addresses, Exception):
            raise self.addresses
        return self.addresses


@pytest.fixture
def changes():
    return []


def name(zone, changes, **more):
    return Name(settings(**more), lambda: changes.append(1), log=structlog.get_logger(), resolve=zone.resolve)


async def test_every_address_is_an_engine(changes):
    zone = Zone("10.0.0.2", "10.0.0.1", "fd00::5")
    one = name(zone, changes)
    await one.look()
    assert one.urls == ("http://10.0.0.1:8000", "http://10.0.0.2:8000", "http://[fd00::5]:8000")
    assert zone.asked == [("engines.example", 8000)]
    assert len(changes) == 1


async def test_the_same_addresses_in_another_order_are_no_change(changes):
    zone = Zone("10.0.0.1", "10.0.0.2")
    one = name(zone, changes)
    await one.look()
    zone.addresses = ("10.0.0.2", "10.0.0.1")
    await one.look()
    assert len(changes) == 1


async def test_an_address_goes_once_it_was_missed_several_times(changes):
    zone = Zone("10.0.0.1", "10.0.0.2")
    one = name(zone, changes, forget_after=3)
    await one.look()
    zone.addresses = ("10.0.0.1",)
    for _ in range(2):
        await one.look()
        assert len(one.urls) == 2
    await one.look()
    assert one.urls == ("http://10.0.0.1:8000",)


async def test_an_address_that_comes_back_in_time_was_never_gone(changes):
    zone = Zone("10.0.0.1", "10.0.0.2")
    one = name(zone, changes, forget_after=2)
    await one.look()
    for addresses in (("10.0.0.1",), ("10.0.0.1", "10.0.0.2")) * 3:
        zone.addresses = addresses
        await one.look()
    assert len(one.urls) == 2
    assert len(changes) == 1


@pytest.mark.parametrize(
    "failure", [socket.gaierror(socket.EAI_AGAIN, "Temporary failure"), OSError("no network"), TimeoutError(), ()]
)
async def test_a_resolver_that_fails_or_finds_nothing_changes_nothing(changes, failure, capsys):
    zone = Zone("10.0.0.1")
    one = name(zone, changes, forget_after=1)
    await one.look()
    zone.addresses = failure
    for _ in range(5):
        await one.look()
    assert one.urls == ("http://10.0.0.1:8000",)
    assert capsys.readouterr().out.count("what was known holds") == 1  # told once, not at every look


def test_a_replica_is_called_after_its_address():
    assert label("http://10.0.0.5:8000") == "10-0-0-5-8000"
    assert label(url_of("fd00::5", 8000)) == "fd00--5-8000"


addresses = st.sampled_from([f"10.0.0.{number}" for number in range(6)])


@given(st.lists(st.lists(addresses, unique=True), max_size=20), st.integers(1, 3))
def test_what_was_found_last_is_always_known_and_nothing_is_known_that_was_never_found(lookups, forget_after):
    known, ever = {}, set()
    for found in lookups:
        known = merge(known, found, forget_after)
        ever |= set(found)
        assert set(found) <= set(known) <= ever
    for _ in range(forget_after):
        known = merge(known, ["10.0.0.0"], forget_after)
    assert set(known) == {"10.0.0.0"}


async def test_names_are_followed_until_they_are_not_wanted(changes):
    zone = Zone("10.0.0.1")
    names = Names(lambda: changes.append(1), log=structlog.get_logger(), resolve=zone.resolve)
    try:
        assert await names.use({"p": settings()}) == {"p": ("http://10.0.0.1:8000",)}
        zone.addresses = ("10.0.0.1", "10.0.0.2")
        async with asyncio.timeout(5):
            while len(names.urls()["p"]) < 2:
                await asyncio.sleep(0.01)
        assert await names.use({"p": settings()}) == names.urls()  # the same settings: nothing begins anew
        assert await names.use({}) == {}
    finally:
        await names.close()


async def test_the_systems_resolver_is_asked():
    assert "127.0.0.1" in await dns.system("localhost", 80)
    with pytest.raises(OSError):
        await dns.system("there-is-no-such-name.invalid", 80)
