"""Keys: who may ask."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "keys_key",
        sa.Column("id", sa.Integer, nullable=False),
        sa.Column("digest", sa.String(64), nullable=False, comment="SHA-256 of the key, hex"),
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("tenant", sa.String(64), nullable=False),
        sa.Column("service", sa.Boolean, nullable=False),
        sa.Column("created_at_s", sa.Double, nullable=False),
        sa.Column("expires_at_s", sa.Double),
        sa.Column("revoked_at_s", sa.Double),
        sa.PrimaryKeyConstraint("id", name="pk_keys_key"),
        sa.UniqueConstraint("digest", name="uq_keys_key_digest"),
    )
    live = sa.text("revoked_at_s IS NULL")
    op.create_index(
        "uq_keys_key_live_name", "keys_key", ["name"], unique=True, sqlite_where=live, postgresql_where=live
    )
