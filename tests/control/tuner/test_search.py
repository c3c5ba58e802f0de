"""The search on known response surfaces, beside random search; what it keeps, and where it goes on."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tidegate.control.tuner.search import Score, Search
from tidegate.control.tuner.space import Setting, Space
from tidegate.control.tuner.trials import Journal, Key, Trial
from tidegate.errors import OperatorError

KEY = Key("digest", "cpu-2", "llamacpp 1", "short", "closed loop, 4 at once", "latency within 3000 ms", "slots 1 2 4")
SPACE = Space([Setting("slots", (1, 2, 4, 8)), Setting("cache", ("f16", "q8_0"), ordered=False)])


async def measured(settings):
    if settings["slots"] == 8:
        return Score("out of memory", cause="8 slots do not fit")
    return Score("measured", float(settings["slots"]), float(settings["slots"]))


async def test_out_of_memory_is_a_result_and_is_not_the_best(tmp_path):
    found = await Search(SPACE, Journal(tmp_path / "trials", KEY), trials=14, seed=1).run(measured)
    assert found.best is not None
    assert found.best["slots"] == 4
    assert {one.outcome for one in found.trials} == {"measured", "out of memory"}
    assert not found.partial


async def test_what_random_search_had_is_told_apart(tmp_path):
    found = await Search(SPACE, Journal(tmp_path / "trials", KEY), trials=12, seed=1).run(measured)
    assert 6 <= sum(one.random for one in found.trials) < 12
    assert found.random_best == max(one.goodput_per_s or 0.0 for one in found.trials if one.random)


async def test_a_search_that_was_interrupted_keeps_what_it_has_as_partial_and_goes_on(tmp_path):
    calls = 0

    async def until_the_fifth(settings):
        nonlocal calls
        calls += 1
        if calls == 5:
            raise KeyboardInterrupt
        return await measured(settings)

    search = Search(SPACE, Journal(tmp_path / "trials", KEY), trials=10, seed=1)
    with pytest.raises(KeyboardInterrupt):
        await search.run(until_the_fifth)
    assert search.found().partial
    assert len(search.found().trials) == 4
    kept = Journal(tmp_path / "trials", KEY)
    found = await Search(SPACE, kept, trials=10, seed=1).run(measured)
    assert len(found.trials) == 10
    assert list(found.trials[:4]) == list(search.found().trials)


KILLED = """
import asyncio, os, signal, sys
from pathlib import Path
from test_search import KEY, SPACE, measured
from tidegate.control.tuner.search import Search
from tidegate.control.tuner.trials import Journal

async def until_the_sixth(settings, calls=[]):
    calls.append(1)
    if len(calls) == 6:
        os.kill(os.getpid(), signal.SIGKILL)
    return await measured(settings)

asyncio.run(Search(SPACE, Journal(Path(sys.argv[1]), KEY), trials=10, seed=1).run(until_the_sixth))
"""


def test_a_search_that_was_killed_has_lost_the_trial_it_was_in_and_no_other(tmp_path):
    file = tmp_path / "trials"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    ended = subprocess.run([sys.executable, "-c", KILLED, str(file)], env=environment, check=False, timeout=60)
    assert ended.returncode == -signal.SIGKILL
    assert len(Journal(file, KEY).trials) == 5
    found = asyncio.run(Search(SPACE, Journal(file, KEY), trials=10, seed=1).run(measured))
    assert len(found.trials) == 10


def test_a_last_line_that_was_torn_counts_as_not_written(tmp_path):
    file = tmp_path / "trials"
    Journal(file, KEY).add(Trial({"slots": 1, "cache": "f16"}, "measured", True, 1.0, 1.0))
    with file.open("ab") as stream:
        stream.write(b'{"settings":{"slo')
    journal = Journal(file, KEY)
    assert len(journal.trials) == 1
    journal.add(Trial({"slots": 2, "cache": "f16"}, "measured", True, 2.0, 2.0))
    assert [one.goodput_per_s for one in Journal(file, KEY).trials] == [1.0, 2.0]
    assert all(json.loads(line) for line in file.read_bytes().splitlines())


def test_trials_of_another_engine_are_not_taken_for_these(tmp_path):
    Journal(tmp_path / "trials", KEY)
    with pytest.raises(OperatorError, match="another search"):
        Journal(tmp_path / "trials", Key("other", *[""] * 6))


async def test_where_nothing_is_ever_good_there_is_no_best(tmp_path):
    async def never(_settings):
        return Score("measured", 0.0, 2.0)

    found = await Search(SPACE, Journal(tmp_path / "trials", KEY), trials=12, seed=1).run(never)
    assert found.best is None
    assert max(one.queries_per_s for one in found.trials) == 2.0


def test_tidegate_is_imported_without_optuna():
    code = "import sys, tidegate.cli, tidegate.control.tuner.search; sys.exit('optuna' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0


def test_every_point_that_is_drawn_or_lies_beside_one_is_allowed():
    space = Space([Setting("a", (1, 2, 4, 8)), Setting("b", (1, 2, 4))], lambda at: at["b"] <= at["a"])
    random = np.random.default_rng(1)
    for _ in range(200):
        point = space.draw(random)
        assert all(space.at(one)["b"] <= space.at(one)["a"] for one in (point, *space.neighbours(point)))
