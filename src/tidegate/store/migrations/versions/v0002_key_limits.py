"""What a key allows: models, classes, quotas. A program of revision 0001 can go on with these tables."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    for name in ("models", "classes"):
        op.add_column("keys_key", sa.Column(name, sa.Text))
    for name in ("requests_per_minute", "tokens_per_minute", "tokens_per_day", "concurrent_streams"):
        op.add_column("keys_key", sa.Column(name, sa.BigInteger))
