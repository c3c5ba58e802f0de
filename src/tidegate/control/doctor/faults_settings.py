"""Flags in the settings of vLLM's pools that this vLLM would end at."""

from collections.abc import Iterator, Sequence

from tidegate.config import VllmOptions
from tidegate.config.sections import PoolSettings
from tidegate.control.doctor.findings import Finding, note, problem
from tidegate.engines import old_flags
from tidegate.engines.old_flags import Remark, Verdict
from tidegate.engines.plan_presets import PRESETS, TUNED
from tidegate.engines.vllm_flags import PINNED
from tidegate.errors import SettingError

ANY_VERSION = "0"


def remarks(pools: Sequence[PoolSettings]) -> Iterator[tuple[str, Remark]]:
    """The setting, and what is the matter with it."""
    for position, pool in enumerate(pools, 1):
        options = pool.engine_options()
        if not isinstance(options, VllmOptions):
            continue
        # Another program than the one installed here may be of any version: there only another engine's flags are sure.
        version = options.version or (ANY_VERSION if options.python or options.command else PINNED)
        for remark in old_flags.check(options.args, version):
            yield f"pool.{position}.options.args", remark
        for name in options.env:
            if (remark_of := old_flags.check_variable(name)) is not None:
                yield f"pool.{position}.options.env", remark_of


def refuse(pools: Sequence[PoolSettings]) -> None:
    """Raise SettingError for what this vLLM would end at, and for a preset that there is not."""
    for position, pool in enumerate(pools, 1):
        options = pool.engine_options()
        if isinstance(options, VllmOptions) and options.preset != TUNED and options.preset not in PRESETS:
            hint = f"there are {', '.join(PRESETS)} and {TUNED}"
            raise SettingError(f"pool.{position}.options.preset", f"there is no {options.preset!r}", hint=hint)
    for setting, remark in remarks(pools):
        if remark.verdict is not Verdict.DEPRECATED and setting.endswith(".args"):
            raise SettingError(setting, remark.text, hint=remark.advice)


def check(pools: Sequence[PoolSettings]) -> Iterator[Finding]:
    """A problem for what the engine would end at; a note for what does nothing, or not for long."""
    for setting, remark in remarks(pools):
        harmless = remark.verdict is Verdict.DEPRECATED or setting.endswith(".env")
        make = note if harmless else problem
        yield make("settings", f"{setting}: {remark.text}", remark.advice)
