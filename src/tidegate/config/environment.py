"""What the environment says that is no setting: hubs of models, and the terminal's language."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class HubEnvironment:
    """What the environment says about hubs of models. Empty: not said."""

    hub: str = ""
    """$TIDEGATE_HUB: `hf`, `modelscope`, or a URL."""
    hf_endpoint: str = ""
    """$HF_ENDPOINT, the Hugging Face libraries' own variable."""
    hf_token: str = ""
    """$HF_TOKEN, sent to Hugging Face only."""


def hub_environment(environ: Mapping[str, str] = os.environ) -> HubEnvironment:
    """Which hubs to ask."""
    return HubEnvironment(
        hub=environ.get("TIDEGATE_HUB", "").strip(),
        hf_endpoint=environ.get("HF_ENDPOINT", "").strip(),
        hf_token=environ.get("HF_TOKEN", "").strip(),
    )


def terminal_language(environ: Mapping[str, str] = os.environ) -> Literal["en", "zh"]:
    """The terminal's language, by the locale's own order: LC_ALL, LC_MESSAGES, LANG. Chinese or English."""
    locale = next((environ[name] for name in ("LC_ALL", "LC_MESSAGES", "LANG") if environ.get(name)), "")
    return "zh" if locale.lower().startswith("zh") else "en"
