"""What is told of a search, and what is kept of it."""

import msgspec

from tidegate.bench.comparing import Verdict
from tidegate.control.report import chapters
from tidegate.control.tuner import llamacpp_space, page
from tidegate.control.tuner.profile import Profile, keep, profile_file
from tidegate.control.tuner.search import Found
from tidegate.control.tuner.trials import Key, Trial

KEY = Key("digest", "cpu-2", "llamacpp-1", "short", "closed loop, 4 at once", "latency within 3000 ms", "slots 1 2 4")


def test_an_slo_that_nobody_keeps_is_told_with_the_most_that_was_seen():
    trials = (
        Trial({"slots": 1}, "measured", True, 0.0, 1.5),
        Trial({"slots": 8}, "out of memory", True, cause="8 slots do not fit"),
        Trial({"slots": 2}, "measured", False, 0.0, 2.5),
    )
    told = page.summary(Found(None, trials, 3))
    assert told == [
        "3 of 3 trials (1 out of memory).",
        "No trial kept the SLO in any answer; the most answers a second were 2.50.",
    ]


def test_what_was_interrupted_is_called_partial_and_random_search_stands_beside():
    trials = (Trial({"slots": 1}, "measured", True, 1.0, 1.5), Trial({"slots": 4}, "measured", False, 2.0, 2.5))
    told = page.summary(Found({"slots": 4}, trials, 40))
    assert told[0] == "2 of 40 trials: partial."
    assert told[1] == "Most goodput in a trial: 2.00/s; the 1 trials drawn at random had 1.00/s."
    whole = page.whole(Found({"slots": 4}, trials, 40), ["Kept: slots 4."], "<table></table>")
    assert "drawn at random" in whole
    assert "<script" not in whole


def test_a_profile_belongs_to_a_model_a_machine_and_an_engine_version_and_is_for_its_owner_alone(tmp_path):
    file = profile_file(tmp_path / "profiles", "ERNIE-4.5-0.3B", KEY.machine, KEY.engine)
    assert file.name == "ernie-4.5-0.3b--cpu-2--llamacpp-1.json"
    profile = Profile(
        "m", KEY, "today", {"slots": 4}, {"up": {"goodput_per_s": Verdict(1.5, 1.3, 1.7, 5)}}, 155.0, 98.0
    )
    keep(file, profile)
    assert msgspec.json.decode(file.read_bytes(), type=Profile) == profile
    assert file.stat().st_mode & 0o077 == 0


def test_the_report_reads_what_tuning_has_kept(tmp_path):
    file = tmp_path / "m.json"
    keep(file, Profile("m", KEY, "today", {"slots": 4}, {}, 155.0, 98.0))
    read = msgspec.json.decode(file.read_bytes(), type=chapters.Profile)
    assert (read.name, read.tokens_per_s, read.default_tokens_per_s) == ("m", 155.0, 98.0)


def test_the_engines_own_defaults_are_in_the_space_of_every_machine():
    for cores in (1, 2, 8, 64):
        space = llamacpp_space.llamacpp_space(cores)
        assert space.allows(space.point(llamacpp_space.engine_defaults(cores)))
