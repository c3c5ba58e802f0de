"""The store of a gateway alone: it reads the keys there, and writes there what was used.

The database's code is loaded with this module, in a third of a second before the first request rather than beside it.
"""

import threading
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from tidegate.cli.parts import Store
from tidegate.config import Settings
from tidegate.control.snapshot import Keys
from tidegate.home import Home
from tidegate.store.database import Touch
from tidegate.types import UsageCount


class OwnStore:
    """Opened when it is needed: a gateway that nobody made keys for, and nobody asked, has no database."""

    def __init__(self, settings: Settings, home: Home) -> None:
        self._settings, self._home = settings, home
        self._store: Store | None = None
        self._opening = threading.Lock()
        self._touch = Touch(home.database) if settings.store.url is None else None

    def keys(self) -> Keys:
        """The keys of this moment. Blocks; raises StoreError, SettingError."""
        if self._store is None and self._settings.store.url is None and not self._home.database.exists():
            return Keys()
        return self._opened().keys()

    def touched(self) -> bool:
        """Whether the keys may be others than the last time; costs next to nothing, and blocks for nobody."""
        return self._touch is None or self._touch.changed()

    def add_usage(self, usage: Sequence[UsageCount]) -> None:
        """Add to the table of usage. Blocks; raises OperatorError."""
        self._opened().add_usage(usage)

    def _opened(self) -> Store:
        with self._opening:
            if self._store is None:
                self._home.create()
                self._store = Store.open(self._settings, self._home)
            return self._store

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._store is not None:
            self._store.close()
