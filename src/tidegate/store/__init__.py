"""The only code that knows SQL: tables, migrations, and one class for each subject.

`open_database` brings the schema up to date. Tables are prefixed by their owner (`keys_ usage_ …`), and one package
owns the writes of a table. Everything here blocks: call it from a thread, never on a request.
"""

from tidegate.store.database import Database, open_database
from tidegate.store.keys import KeyStore, StoredKey, digest_of, new_secret
from tidegate.store.usage import UsageRow, UsageStore

__all__ = ["Database", "KeyStore", "StoredKey", "UsageRow", "UsageStore", "digest_of", "new_secret", "open_database"]
