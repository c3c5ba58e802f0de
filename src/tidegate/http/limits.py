"""What a client may take before it is cut off."""

import msgspec


class Limits(msgspec.Struct, frozen=True):
    """What a client may take before it is cut off. Times in seconds."""

    max_head_bytes: int = 32 * 1024
    max_headers: int = 100
    max_body_bytes: int = 16 * 1024 * 1024
    head_timeout_s: float = 10.0
    body_timeout_s: float = 60.0
    idle_timeout_s: float = 75.0
    write_timeout_s: float = 60.0
    max_connections: int = 20_000
