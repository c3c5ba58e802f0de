"""What `tidegate up` tells on stdout, for as long as somebody reads it."""

import os
import sys


def say(text: str) -> None:
    """Print at once. A pipe whose reader is gone, or a full disk, is no reason to stop what runs."""
    try:
        print(text, flush=True)
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())  # what is still in the buffer goes there, too
        os.close(nowhere)
