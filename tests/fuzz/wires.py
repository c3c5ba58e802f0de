"""Transports without sockets: what is written stays here to be looked at."""


class Wire:
    """One side's transport."""

    def __init__(self) -> None:
        self.sent = bytearray()
        self.reading = True
        self.closed = self.ended = False

    def write(self, data: bytes) -> None:
        if not self.closed:
            self.sent += data

    def writelines(self, pieces) -> None:
        self.write(b"".join(pieces))

    def is_closing(self) -> bool:
        return self.closed

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.ended = True

    def close(self) -> None:
        self.closed = True

    abort = close

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def get_extra_info(self, name, default=None):
        return ("127.0.0.1", 1) if name == "peername" else default
