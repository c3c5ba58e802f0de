"""The tables, as the newest migration leaves them (a test compares the two)."""

import sqlalchemy as sa

metadata = sa.MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
    }
)

keys_key = sa.Table(
    "keys_key",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("digest", sa.String(64), nullable=False, unique=True, comment="SHA-256 of the key, hex"),
    sa.Column("name", sa.String(64), nullable=False),
    sa.Column("tenant", sa.String(64), nullable=False),
    sa.Column("service", sa.Boolean, nullable=False),
    sa.Column("created_at_s", sa.Double, nullable=False),
    sa.Column("expires_at_s", sa.Double),
    sa.Column("revoked_at_s", sa.Double),
    sa.Column("models", sa.Text),
    sa.Column("classes", sa.Text),
    sa.Column("requests_per_minute", sa.BigInteger),
    sa.Column("tokens_per_minute", sa.BigInteger),
    sa.Column("tokens_per_day", sa.BigInteger),
    sa.Column("concurrent_streams", sa.BigInteger),
)
"""Keys ever made. A name is taken for as long as its key is not revoked. `models` and `classes` are JSON lists; NULL
allows everything, as a NULL quota does."""

LIVE_NAME = sa.Index(
    "uq_keys_key_live_name",
    keys_key.c.name,
    unique=True,
    sqlite_where=keys_key.c.revoked_at_s.is_(None),
    postgresql_where=keys_key.c.revoked_at_s.is_(None),
)

usage_day = sa.Table(
    "usage_day",
    metadata,
    sa.Column("day", sa.Date, primary_key=True, comment="UTC"),
    sa.Column("tenant", sa.String(64), primary_key=True),
    sa.Column("class", sa.String(64), primary_key=True),
    sa.Column("model", sa.String(256), primary_key=True),
    sa.Column("outcome", sa.String(16), primary_key=True),
    sa.Column("requests", sa.BigInteger, nullable=False),
    sa.Column("prompt_tokens", sa.BigInteger, nullable=False),
    sa.Column("completion_tokens", sa.BigInteger, nullable=False),
)
"""What was used, added up by the processes that write it: control, and gateways alone."""
