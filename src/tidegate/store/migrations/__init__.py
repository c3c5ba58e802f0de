"""One chain of migrations, run when the database is opened.

`HEAD` is the newest revision (a test holds it to the files), so that a database that is up to date is recognised
without importing Alembic. A migration runs inside one transaction with all others: all of them are done, or none.
"""

from pathlib import Path

import sqlalchemy as sa

from tidegate.errors import StoreError

HEAD = "0003"
FOLDER = Path(__file__).parent


def recorded_revision(connection: sa.Connection) -> str | None:
    """The revision the database is at; None for an empty one."""
    if not sa.inspect(connection).has_table("alembic_version"):
        return None
    return connection.execute(sa.text("SELECT version_num FROM alembic_version")).scalar()


def upgrade(connection: sa.Connection, where: str) -> None:
    """Bring the schema to `HEAD`, inside the caller's transaction. Raises StoreError for a schema newer than this."""
    from alembic.config import Config
    from alembic.runtime.environment import EnvironmentContext
    from alembic.script import ScriptDirectory

    scripts = ScriptDirectory(str(FOLDER))
    recorded = recorded_revision(connection)
    if recorded is not None and recorded not in {script.revision for script in scripts.walk_revisions()}:
        raise StoreError(
            f"the database {where} has schema {recorded}; this version of Tidegate knows schemas up to {HEAD}",
            hint="a newer version wrote it: install that version again, or use another data folder (TIDEGATE_HOME)",
        )
    context = EnvironmentContext(
        Config(),
        scripts,
        fn=lambda revision, _: scripts._upgrade_revs("head", revision),  # noqa: SLF001 - what `alembic upgrade` itself calls
        destination_rev="head",
    )
    with context:
        context.configure(connection=connection, render_as_batch=True)
        with context.begin_transaction():
            context.run_migrations()
