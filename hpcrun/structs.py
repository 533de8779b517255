"""Preparation of types for decoding JSON in several threads."""

from __future__ import annotations

from threading import Lock
from typing import TypeVar

import msgspec

T = TypeVar("T")
_lock = Lock()
_ready: set[object] = set()


def decodable(type_: type[T]) -> type[T]:
    """Return the type with its forward references resolved.

    msgspec resolves a type on the first decode or inspection. If a second thread decodes the same
    type meanwhile, it finds incomplete information and the process crashes (msgspec 0.22.0).

    >>> msgspec.json.decode(b"[1]", type=decodable(list[int]))
    [1]
    """
    if type_ not in _ready:
        with _lock:
            msgspec.json.Decoder(type_)
            _ready.add(type_)
    return type_
