"""The files that the job writes about itself: each has one writer, and appears by rename."""

import os

# A run stops after this many attempts in a row without progress, with this note in its end record.
MAX_IDLE_ATTEMPTS = 3
IDLE_ATTEMPTS_NOTE = "three attempts in a row got no further: the next would not either"


def write_record(path: str, text: str) -> None:
    """Write a file as a whole or not at all; whatever the job's umask, nobody else may write it."""
    part = path + ".part"
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    with os.fdopen(descriptor, "wb") as file:
        file.write(os.fsencode(text + "\n"))
    os.rename(part, path)


def read_line(path: str) -> str:
    """Read the first line of a file; empty where there is none."""
    try:
        with open(path, "rb") as file:
            return os.fsdecode(file.readline().rstrip(b"\n"))
    except OSError:
        return ""
