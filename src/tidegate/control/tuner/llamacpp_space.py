"""What is searched of llama.cpp: options of a pool that take a restart. Pure."""

from typing import Final

from tidegate.control.tuner.space import Setting, Settings, Space

SLOTS: Final = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
BATCHES: Final = (64, 128, 256, 512, 1024, 2048)
MICRO_BATCHES: Final = (32, 64, 128, 256, 512, 1024)
ENGINE_SLOTS, ENGINE_BATCH, ENGINE_MICRO_BATCH = 4, 2048, 512
"""What llama.cpp's own server takes where it is told nothing: four slots, `n_batch` and `n_ubatch` of its source."""


def llamacpp_space(cores: int) -> Space:
    """For a machine of so many physical cores. Weights and cache stay as they are: the answers are the same."""
    threads = sorted({1, max(cores // 2, 1), max(cores * 3 // 4, 1), max(cores - 1, 1), cores, cores + 1, 2 * cores})
    return Space(
        [
            Setting("slots", SLOTS, memory=True),
            Setting("batch_tokens", BATCHES, memory=True),
            Setting("micro_batch_tokens", MICRO_BATCHES, memory=True),
            Setting("threads", tuple(threads)),
        ],
        _allowed,
    )


def _allowed(settings: Settings) -> bool:
    return int(settings["micro_batch_tokens"]) <= int(settings["batch_tokens"])


def engine_defaults(cores: int) -> dict[str, int | float | str]:
    """What llama.cpp's own server would be started with."""
    return {
        "slots": ENGINE_SLOTS,
        "batch_tokens": ENGINE_BATCH,
        "micro_batch_tokens": ENGINE_MICRO_BATCH,
        "threads": cores,
    }
