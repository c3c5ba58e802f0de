import pytest
import tiny

from tidegate.home import Home
from tidegate.models.convert import convert
from tidegate.models.progress import Silent


@pytest.fixture
def home(tmp_path):
    made = Home(tmp_path / "home")
    made.create()
    return made


@pytest.fixture
def models(home):
    return home.models


@pytest.fixture(scope="session")
def ernie_folder(tmp_path_factory):
    """A tiny ERNIE as safetensors; read only."""
    folder = tmp_path_factory.mktemp("ernie") / "ERNIE-4.5-0.3B-PT"
    tiny.write_ernie(folder)
    return folder


@pytest.fixture(scope="session")
def ernie_files(ernie_folder):
    """The same as a repository's files."""
    return {path.name: path.read_bytes() for path in ernie_folder.iterdir()}


@pytest.fixture(scope="session")
def ernie_gguf(ernie_folder, tmp_path_factory):
    """The same as a GGUF file of 8 bits, whose turn's end is named; read only."""
    path = tmp_path_factory.mktemp("gguf") / "tiny-Q8_0.gguf"
    convert(ernie_folder, path, "Q8_0", Silent(), name="tiny")
    return path


@pytest.fixture(scope="session")
def gguf_files(ernie_folder, ernie_gguf, tmp_path_factory):
    """A repository of GGUF files."""
    four = tmp_path_factory.mktemp("gguf") / "tiny-Q4_0.gguf"
    convert(ernie_folder, four, "Q4_0", Silent(), name="tiny")
    return {
        "ERNIE-4.5-0.3B-PT-Q8_0.gguf": ernie_gguf.read_bytes(),
        "ERNIE-4.5-0.3B-PT-Q4_0.gguf": four.read_bytes(),
        "mmproj-Q8_0.gguf": bytes(2000),
        "README.md": b"# tiny",
    }
