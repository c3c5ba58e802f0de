"""The keys a gateway alone reads for itself, where there is a store to read them from."""

from types import TracebackType
from typing import TYPE_CHECKING, Self

from tidegate.config import Settings
from tidegate.control.snapshot import Keys
from tidegate.home import Home

if TYPE_CHECKING:
    from tidegate.cli.parts import Store


class StoredKeys:
    """Opens the store when there is one: a gateway that nobody made keys for needs no database."""

    def __init__(self, settings: Settings, home: Home) -> None:
        self._settings, self._home = settings, home
        self._store: Store | None = None

    def read(self) -> Keys:
        """The keys of this moment. Blocks; raises StoreError, SettingError."""
        if self._store is None:
            if self._settings.store.url is None and not self._home.database.exists():
                return Keys()
            from tidegate.cli.parts import Store

            self._store = Store.open(self._settings, self._home)
        return self._store.keys()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._store is not None:
            self._store.close()
