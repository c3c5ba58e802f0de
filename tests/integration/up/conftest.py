"""Fixtures of the tests of `tidegate up` with fake engines."""

import pytest

from up_site import Site


@pytest.fixture
def site():
    site = Site()
    try:
        yield site
    finally:
        site.close()
