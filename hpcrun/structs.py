"""Types that JSON is read into, made ready for threads."""

from __future__ import annotations

from threading import Lock
from typing import TypeVar

import msgspec

T = TypeVar("T")
_lock = Lock()
_ready: set[object] = set()


def decodable(type_: type[T]) -> type[T]:
    """Return the type, of which msgspec knows all by then.

    It learns a type when the first value is read into it, or when it is asked about it. A second
    thread that reads one meanwhile finds it half learned, which ends the process (msgspec 0.22.0).

    >>> msgspec.json.decode(b"[1]", type=decodable(list[int]))
    [1]
    """
    if type_ not in _ready:
        with _lock:
            msgspec.json.Decoder(type_)
            _ready.add(type_)
    return type_
