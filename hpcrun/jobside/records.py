"""Records of an attempt; each has one writer, and appears by a rename.

The fields of each kind of record are defined here. bash writes the records that must exist even if
no Python runs (templates/records.sh), in the same format. hpcrun reads them with types of the same
fields (hpcrun/runs/records.py).
"""

import json
import os
from typing import Any, Dict, Mapping

# The version of the format, which each record states. Readers ignore records of a later version.
RECORD_VERSION = 1
# The fields of each kind of record, in the order in which they are written.
RECORD_FIELDS = {
    "begin": (
        *("attempt", "job_id", "host", "pid", "nodes", "begun_at", "restarts"),
        "successor",  # added while the attempt runs
    ),
    # Without `next` the record is preliminary: no decision was made whether the run continues.
    "end": (
        *("attempt", "job_id", "begun_at", "stopped_by", "first_failure", "exit_code", "signal"),
        *("ended_at", "why", "checkpoint", "next", "note"),
    ),
    "failure": (
        *("rank", "local_rank", "node", "host", "exit_code", "signal", "at", "why"),
        "role",  # added to the copy in the records of the main role
    ),
    "stall": ("since", "silent_seconds", "threshold", "step", "ranks", "stacks"),
    # When the first rank's log showed which step, in seconds since the watcher started.
    "pace": ("seconds", "steps"),
}

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


def make_record(kind: str, values: Mapping[str, Any]) -> Dict[str, Any]:
    """Return a record of this kind; fields without a value are omitted.

    Raises:
        KeyError: A value is of no field of this kind.
    """
    unknown = set(values) - set(RECORD_FIELDS[kind]) - {"version"}
    if unknown:
        raise KeyError(", ".join(sorted(unknown)))
    fields = {name: values[name] for name in RECORD_FIELDS[kind] if name in values}
    return {"version": RECORD_VERSION, **fields}


def write_json(path: str, kind: str, values: Mapping[str, Any]) -> None:
    """Write a record of this kind as JSON, in ASCII: a job may run in any locale."""
    write_record(path, json.dumps(make_record(kind, values)))


def read_line(path: str) -> str:
    """Return the first line of a file; "" if the file does not exist."""
    try:
        with open(path, "rb") as file:
            return os.fsdecode(file.readline().rstrip(b"\n"))
    except OSError:
        return ""


def read_json(path: str) -> Dict[str, Any]:
    """Return a record; {} if it does not exist, is damaged, or is of a later version."""
    try:
        with open(path, "rb") as file:
            found = json.loads(file.read().decode("utf-8", "replace"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) and is_known_version(found) else {}


def is_known_version(record: Mapping[str, Any]) -> bool:
    """Return True unless a record is of a later version. The first version did not state it.

    >>> is_known_version({}), is_known_version({"version": 2})
    (True, False)
    """
    version = record.get("version", 1)
    return isinstance(version, int) and version <= RECORD_VERSION
