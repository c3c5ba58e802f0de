"""Servers compared in turn: what is shown, how surely, and what becomes of one that fails."""

import asyncio
import json
import os
import random
import signal
import subprocess
import sys

import psutil
import pytest

from tidegate.bench import comparing, comparison_text
from tidegate.bench.figures import Spread
from tidegate.bench.results import Machine, Run, Use
from tidegate.control.state import Lock
from tidegate.engines.fake_server import FakeServer, FakeServerOptions
from tidegate.home import Home

COMPARE = [sys.executable, "-m", "tidegate", "bench", "compare"]
LOAD = ["--rate", 40, "--seconds", 1, "--warmup", 0, "--workload", "service"]


def run(queries=10.0, p50=0.1, *, partial=False, failed=None):
    spread = None if p50 is None else Spread(count=10, mean=p50, p50=p50, p90=p50, p99=p50, most=p50)
    return Run(
        name="", offered_per_s=None, partial=partial, requests=10, answered=10, failed=failed or {}, explained={},
        unfinished=0, seconds=1.0, sending_s=1.0, queries_per_s=queries, latency_s=spread, first_token_s=spread,
        per_output_token_s=None, inter_token_s=None, over_bound=0.0, prompt_tokens=1, output_tokens=1, prompt_tokens_per_s=1.0,
        output_tokens_per_s=1.0, within_slo=None, goodput_per_s=None, sent_late_s=None, most_in_flight=1, classes={},
        time_line=[], curves={}, use=Use(most_resident_bytes=1024**2),
    )  # fmt: skip


def comparison(*arms, partial=False, slo=""):
    return comparing.Comparison(
        tidegate="0", command="c", date="d", machine=Machine("p", 2, "s", "3", 0.0), load="l", workload="w", slo=slo, rounds=3,
        partial=partial, arms=list(arms), verdicts=comparing.verdicts(arms),
    )  # fmt: skip


# figures


def test_a_ratio_is_the_geometric_mean_with_students_interval_of_the_logarithms():
    """Logarithms of 1.1, 1.2, 1.3: mean 0.17999, deviation 0.08359, and t(2; 0.975) = 4.303."""
    told = comparing.verdict([10, 10, 10], [11, 12, 13])
    assert told.ratio == pytest.approx(1.19722, rel=1e-5)
    assert (told.low, told.high) == pytest.approx((0.97281, 1.47339), rel=1e-4)
    assert not told.shown


def test_what_is_the_same_in_every_round_is_sure():
    told = comparing.verdict([1.0, 7.0, 3.0], [2.0, 14.0, 6.0])
    assert (told.ratio, told.low, told.high) == pytest.approx((2.0, 2.0, 2.0))
    assert told.shown


@pytest.mark.parametrize(("first", "other"), [([1.0], [2.0]), ([None, 1.0], [1.0, 2.0]), ([0.0, 1.0], [1.0, 2.0])])
def test_one_round_of_both_shows_nothing(first, other):
    assert comparing.verdict(first, other) is None


def test_one_that_answered_nothing_in_a_round_is_never_the_better_one():
    assert comparing.verdict([10.0] * 5, [12.0, 12.1, 0.0, 0.0, 0.0]) is None
    dying = comparing.Arm("dies", "d", [run(20.0), run(20.0), run(0.0, None, failed={"cut off": 10})])
    assert "queries_per_s" not in comparing.verdicts([comparing.Arm("a", "a", [run(), run(), run()]), dying])["dies"]
    assert "latency_p99_s" not in comparing.verdicts([comparing.Arm("a", "a", [run(), run(), run()]), dying])["dies"]


def test_nineteen_intervals_in_twenty_hold_the_true_ratio():
    """2,000 comparisons of five rounds, the true ratio 1.3, each run off by 10 %, each round by 50 %."""
    draw, held = random.Random(7), 0
    for _ in range(2000):
        rounds = [draw.lognormvariate(0, 0.5) for _ in range(5)]
        first = [level * draw.lognormvariate(0, 0.1) for level in rounds]
        other = [1.3 * level * draw.lognormvariate(0, 0.1) for level in rounds]
        told = comparing.verdict(first, other)
        held += told.low <= 1.3 <= told.high
    assert 0.94 <= held / 2000 <= 0.96


def test_rounds_go_there_and_back():
    assert comparing.turns(3, 2) == [(0, 0), (0, 1), (0, 2), (1, 2), (1, 1), (1, 0)]


def test_more_queries_and_less_time_are_better():
    better = comparing.Verdict(1.5, 1.2, 1.8, 3)
    assert comparing.better("queries_per_s", better) is True
    assert comparing.better("latency_p99_s", better) is False
    assert comparing.better("memory_bytes", comparing.Verdict(0.8, 0.7, 0.9, 3)) is True
    assert comparing.better("queries_per_s", comparing.Verdict(1.5, 0.9, 1.8, 3)) is None


# words


def test_it_says_who_is_better_and_where_no_difference_was_shown():
    slow = comparing.Arm("slow", "b", [run(5.0, 0.1), run(5.1, 0.099), run(4.9, 0.1005)])
    text = comparison_text.table(comparison(comparing.Arm("fast", "a", [run(), run(), run()]), slow))
    assert "queries/s: slow is at 0.50 times fast, worse (0.48 to 0.53, 3 rounds)." in text
    assert "latency P99: no difference shown between slow and fast" in text


def test_a_run_that_was_interrupted_does_not_count():
    cut = comparing.Arm("b", "b", [run(20.0), run(20.0), run(1.0, partial=True)])
    told = comparison(comparing.Arm("a", "a", [run(), run(), run()]), cut, partial=True)
    assert told.verdicts["b"]["queries_per_s"].rounds == 2
    assert "PARTIAL" in comparison_text.table(told)


def test_one_that_has_too_little_memory_is_told_and_the_others_are_compared():
    arms = [comparing.Arm(name, name, [run(), run(), run()]) for name in ("a", "b")]
    big = comparing.Arm("big", "c", [None] * 3, fault="needs 9 GiB of memory, and there are 2", no_memory=True)
    text = comparison_text.table(comparison(*arms, big))
    assert "big has too little memory: needs 9 GiB" in text
    assert "big against a: two whole rounds of both are needed" in text


def test_the_preset_table_has_queries_mean_p99_and_memory():
    arms = [comparing.Arm(name, name, [run()]) for name in ("default", "balanced", "extreme")]
    assert comparison_text.preset_table(comparison(*arms)).splitlines() == [
        "|  | queries/s | latency mean | latency P99 | memory |",
        "|---|---|---|---|---|",
        *(f"| {name} | 10 | 100 ms | 100 ms | 1 MiB |" for name in ("default", "balanced", "extreme")),
    ]


def test_names_that_look_like_markup_stay_text():
    arms = [comparing.Arm("<b>", "<script>", [run(), run()]), comparing.Arm("|", "`", [run(), run()])]
    page = comparison_text.page(comparison(*arms))
    assert "<script>" not in page
    assert "<b>" not in page


# the command, on engines


@pytest.fixture
def compare(tmp_path):
    """Run the command, with a data folder of its own."""
    environ = {**os.environ, "TIDEGATE_HOME": str(tmp_path / "home")}

    def start(*arguments):
        return subprocess.Popen(
            [*COMPARE, *map(str, arguments)], cwd=tmp_path, env=environ, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )  # fmt: skip

    yield start
    assert not [one for one in psutil.process_iter(["environ"]) if _of(one, tmp_path)], "nothing of it is left"


def _of(process, folder):
    return (process.info["environ"] or {}).get("TIDEGATE_HOME", "").startswith(str(folder))


def settings(folder, name, **options):
    pool = {"name": "p", "model": "m", "engine": "fake", "options": options}
    text = "\n".join(f"options.{key} = {value}" for key, value in pool.pop("options").items())
    file = folder / f"{name}.toml"
    file.write_text("[[pool]]\n" + "\n".join(f'{key} = "{value}"' for key, value in pool.items()) + f"\n{text}\n")
    return file


def test_the_slower_of_two_settings_is_found(compare, tmp_path):
    fast, slow = settings(tmp_path, "fast", first_ms=1, gap_ms=1), settings(tmp_path, "slow", first_ms=60, gap_ms=1)
    process = compare(fast, slow, *LOAD, "--rounds", 3, "--json", "c.json", "--html", "c.html")
    out, err = process.communicate(timeout=100)
    assert process.returncode == 0, err
    told = json.loads((tmp_path / "c.json").read_bytes())
    verdict = told["verdicts"]["slow"]["first_token_p50_s"]
    assert verdict["low"] > 1.5
    assert [len(arm["runs"]) for arm in told["arms"]] == [3, 3]
    sent = [[one["requests"] for one in arm["runs"]] for arm in told["arms"]]
    assert sent[0] == sent[1], "each round asks both the same"
    assert "first token P50: slow is at" in out
    assert (tmp_path / "c.html").read_text().startswith("<!doctype html>")


async def test_servers_that_run_already_are_compared_and_one_that_is_away_is_told(compare):
    async with FakeServer(FakeServerOptions(tokens=4)) as engine:
        process = compare(f"here={engine.url}", "away=http://127.0.0.1:9", *LOAD, "--rounds", 2)
        out, err = await asyncio.to_thread(process.communicate, timeout=100)
    assert process.returncode == 1, "with one alone nothing can be compared"
    assert "away could not be measured" in out
    assert "round 2 of 2: away" not in err, "it is not asked again"


def test_ctrl_c_tells_what_there_is_and_ends_the_engine(compare, tmp_path):
    one, two = settings(tmp_path, "one", gap_ms=1), settings(tmp_path, "two", gap_ms=1)
    process = compare(one, two, "--rate", 20, "--seconds", 0.5, "--warmup", 0, "--rounds", 100, "--workload", "service")
    for line in process.stderr:
        if line.startswith("round 3 of 100: two"):
            break
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "PARTIAL" in out
    assert "2 rounds)" in out or "3 rounds)" in out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["a.toml", "b.toml"], "neither a URL, nor preset:NAME, nor a settings file"),
        (["http://127.0.0.1:9"], "say what to compare: A B, or A B C"),
        (["x=http://127.0.0.1:9", "x=http://127.0.0.1:8"], "two have one name"),
        (["--preset-table", "preset:default"], "says itself what is compared"),
        (["preset:default", "preset:extreme", "--engine", "llamacpp", "--model", "demo"], "presets are vLLM's"),
        (["preset:default", "preset:extreme"], "name it with --model"),
    ],
)
def test_what_cannot_be_compared_is_one_message_and_code_2(compare, arguments, said):
    process = compare(*arguments, "--rate", 1)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 2
    assert said in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    "command",
    [["bench", "compare", "one.toml", "two.toml", "--rate", "1"], ["tune", "--slo", "ttft=1s", "--rate", "1"]],
)
def test_no_engine_is_tried_beside_one_that_serves_from_the_data_folder(tmp_path, command):
    settings(tmp_path, "one"), settings(tmp_path, "two")
    home = Home(tmp_path / "home")
    home.create()
    lock = Lock.acquire(home)
    try:
        environ = {**os.environ, "TIDEGATE_HOME": str(home.path)}
        arguments = [sys.executable, "-m", "tidegate", *command]
        done = subprocess.run(arguments, cwd=tmp_path, env=environ, text=True, capture_output=True, check=False)
    finally:
        lock.release()
    assert done.returncode == 2
    assert f"already running with the data folder {home.path} (process {os.getpid()})" in done.stderr


def test_a_file_of_several_engines_is_refused(compare, tmp_path):
    file = tmp_path / "two.toml"
    pools = (f'[[pool]]\nname = "{name}"\nmodel = "m"\nengine = "fake"\n' for name in ("a", "b"))
    file.write_text("".join(pools))
    process = compare(file, "http://127.0.0.1:9", "--rate", 1)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "does not say one engine" in err
