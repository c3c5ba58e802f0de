import shutil
import tempfile
from pathlib import Path

import pytest

from tidegate.home import Home


@pytest.fixture
def home():
    """A data folder of its own, with a short name as a user's has."""
    path = Path(tempfile.mkdtemp(prefix="tg-"))
    home = Home(path)
    home.create()
    yield home
    shutil.rmtree(path)
