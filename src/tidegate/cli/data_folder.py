"""Where the data folder is, for commands that have no flag for the settings file."""

from tidegate.config import find_file, load
from tidegate.home import Home, find_home


def data_folder() -> Home:
    """The data folder that the environment or the settings file name. Raises SettingError."""
    return find_home(load(find_file(None, find_home().path)).store.home)
