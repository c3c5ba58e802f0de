"""Engines and models of the data folder, beside the versions that this Tidegate would get. Blocks."""

from tidegate.control.report.chapters import Installed
from tidegate.engines import environments, vllm_releases
from tidegate.home import Home
from tidegate.models import catalogue, library

DIGITS = 12
"""Of a checksum: enough to tell two files apart by eye."""


def installed(home: Home) -> list[Installed]:
    """The newest environment of vLLM, and models whose file the catalogue pins. Other models have no version to compare."""
    found = [
        Installed("engine", "vllm", one.made.version, vllm_releases.DEFAULT, "run `tidegate engines install vllm`")
        for one in environments.installed(home.engines)[:1]
    ]
    for model in library.stored(home.models):
        known = catalogue.find(model.name)
        if known is not None and known.wheel is not None and model.variant == known.wheel.quantisation:
            here = next((one.sha256 for one in model.manifest.files if one.path == model.manifest.main), "")
            wanted = known.wheel.member_sha256
            renew = f"run `tidegate models pull {model.name}`"
            found.append(Installed("model", model.name, here[:DIGITS], wanted[:DIGITS], renew))
    return found
