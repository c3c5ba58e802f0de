"""`tidegate up` with a pool that has bounds: engines come while requests wait, and go when they would not be missed."""

import time

from integration.up.traffic import Traffic

POOL = """\
[[pool]]
name = "p"
model = "m"
engine = "fake"
replicas_min = 1
replicas_max = 2
scaling = { wait_s = 0.2, grow_after_s = 1.0, shrink_below = 0.5, shrink_after_s = 3.0 }
[pool.options]
tokens = 20
gap_ms = 50
slots = 1
"""


def test_a_second_engine_comes_while_requests_wait_and_goes_when_it_is_quiet(site):
    site.settings(POOL)
    up = site.up().ready()
    assert [one.id for one in site.status().replicas] == ["p-0"]
    port = int(site.urls()["api"].rpartition(":")[2].partition("/")[0])

    def names(*wanted):
        return lambda: {one.id for one in site.status().replicas if one.state == "ready"} == set(wanted)

    with Traffic(port, keeping=8, slow=0, new=1, scrape=False) as traffic:
        up.until(names("p-0", "p-1"))
        traffic.more(30)
    assert traffic.faults == []
    assert "pool scaled" in up.text()
    up.until(lambda: len(site.status().replicas) == 1)
    assert names("p-0")()
    time.sleep(1.5)  # it does not begin to swing
    assert names("p-0")()
    up.interrupt()
    assert up.end() == 0
