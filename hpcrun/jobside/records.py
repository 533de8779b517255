"""Records that the job writes; each has one writer, and appears by a rename."""

import json
import os
from typing import Any, Dict, Mapping

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


def write_json(path: str, record: Mapping[str, Any]) -> None:
    """Write a record as JSON, in ASCII: a job may run in any locale."""
    write_record(path, json.dumps(record))


def read_line(path: str) -> str:
    """Return the first line of a file; "" if the file does not exist."""
    try:
        with open(path, "rb") as file:
            return os.fsdecode(file.readline().rstrip(b"\n"))
    except OSError:
        return ""


def read_json(path: str) -> Dict[str, Any]:
    """Return the object in a JSON file; {} if it does not exist or is damaged."""
    try:
        with open(path, "rb") as file:
            found = json.loads(file.read().decode("utf-8", "replace"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
