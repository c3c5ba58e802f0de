"""A short soak: the whole of Tidegate under load, its engines killed again and again."""

from load.soak import Soak


async def test_no_answer_is_lost_while_engines_are_killed_and_nothing_stays_open(tmp_path):
    """Ten minutes of it are `make soak`."""
    result = await Soak(tmp_path).run(12, kill_every_s=2.5)
    assert result.kills >= 1
    assert not result.lost, result.lost
    assert result.whole > 100
    assert result.samples[-1].open_files < result.samples[0].open_files + 100
