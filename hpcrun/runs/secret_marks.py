"""Marks of a run's secrets: they tell a secret that is met in a log, and do not hold it.

The values themselves are removed when a run ends (layout.SECRETS), and its log may show one years
later. A mark is a digest with a key of its own and the value's length, in a file of mode 0600.
Only of values that look drawn by lot and are long: of those nobody finds the value by trying. A
password that a person chose gets no mark; it is hidden while the run lives, or while the reader's
own environment has it, and after its name.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from itertools import pairwise

from msgspec import Struct

_PLAIN = re.compile(rb"[A-Za-z0-9._~+/=-]+")
# Of hexadecimal digits, the least random characters in use, 80 bits.
_SHORTEST = 20


class SecretMark(Struct, frozen=True, kw_only=True):
    """One secret's: ``length`` in bytes, ``others`` its characters beside letters and digits."""

    name: str
    length: int
    others: bytes
    key: bytes
    digest: bytes


def mark_secrets(values: Mapping[str, bytes], key: bytes) -> list[SecretMark]:
    """Make the marks of all values that can have one.

    >>> [mark.name for mark in mark_secrets({"A": b"0123456789abcdef0123", "B": b"pass"}, b"k")]
    ['A']
    """
    return [
        SecretMark(
            name=name,
            length=len(value),
            others=bytes(sorted({char for char in value if not chr(char).isalnum()})),
            key=key,
            digest=_digest(value, key),
        )
        for name, value in values.items()
        if _is_random(value)
    ]


def is_marked(mark: SecretMark, word: bytes) -> bool:
    """Tell whether a word is the secret."""
    return _digest(word, mark.key) == mark.digest


def _digest(value: bytes, key: bytes) -> bytes:
    return hashlib.blake2b(value, key=key, digest_size=16).digest()


def _is_random(value: bytes) -> bool:
    """Tell whether a value is long, and letters and digits in it change as chance would have it."""
    if len(value) < _SHORTEST or not _PLAIN.fullmatch(value) or len(set(value)) < 10:
        return False
    if re.fullmatch(rb"[0-9a-f]+|[0-9A-F]+", value):
        return True
    kinds = re.sub(rb"[0-9]", b"0", re.sub(rb"[A-Z]", b"A", re.sub(rb"[a-z]", b"a", value)))
    changes = sum(a != b for a, b in pairwise(kinds))
    return changes * 3 >= len(value)
