"""Usage: what was used, by day. A program of an earlier revision can go on beside this table."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.create_table(
        "usage_day",
        sa.Column("day", sa.Date, nullable=False, comment="UTC"),
        sa.Column("tenant", sa.String(64), nullable=False),
        sa.Column("class", sa.String(64), nullable=False),
        sa.Column("model", sa.String(256), nullable=False),
        sa.Column("outcome", sa.String(16), nullable=False),
        sa.Column("requests", sa.BigInteger, nullable=False),
        sa.Column("prompt_tokens", sa.BigInteger, nullable=False),
        sa.Column("completion_tokens", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("day", "tenant", "class", "model", "outcome", name="pk_usage_day"),
    )
