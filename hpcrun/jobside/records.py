"""Records that the job writes; each has one writer, and appears by a rename."""

import os

# A run stops after this many attempts in a row without progress, with this note in its end record.
MAX_IDLE_ATTEMPTS = 3
IDLE_ATTEMPTS_NOTE = "three attempts in a row got no further: the next would not either"


def write_record(path: str, text: str) -> None:
    """Write a file atomically. Whatever the job's umask, other users cannot write to it."""
    part = path + ".part"
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    with os.fdopen(descriptor, "wb") as file:
        file.write(os.fsencode(text + "\n"))
    os.rename(part, path)


def read_line(path: str) -> str:
    """Return the first line of a file; "" if the file does not exist."""
    try:
        with open(path, "rb") as file:
            return os.fsdecode(file.readline().rstrip(b"\n"))
    except OSError:
        return ""
