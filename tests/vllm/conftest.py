"""The environment with vLLM that `scripts/test-vllm` has prepared, and `tidegate up` with it."""

import os
from pathlib import Path

import pytest

from tidegate.engines import environments
from up_site import Site

VARIABLE = "TIDEGATE_TEST_VLLM"


@pytest.fixture(scope="session")
def vllm():
    """The environment; a data folder named by $TIDEGATE_TEST_VLLM holds it."""
    folder = os.environ.get(VARIABLE)
    found = environments.find(Path(folder) / "engines") if folder else None
    if found is None:
        pytest.skip("there is no vLLM: `make test-vllm` installs it, and runs these tests")
    return found


@pytest.fixture(scope="module")
def site(vllm):
    site = Site()
    try:
        (site.home.path / "engines").symlink_to(vllm.folder.parent)
        yield site
    finally:
        site.close()
