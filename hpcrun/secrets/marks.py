"""Marks of a run's secrets: a mark recognises a secret in a log and does not contain it.

The values themselves are removed when a run ends (layout.SECRETS), and its log may be read years
later. A mark is a keyed digest and the value's length, in a file of mode 0600. Only long random
values get one: nobody finds those by trying. A password that a person chose gets no mark; it is
masked while the run lives, or while the reader's own environment has it, and after its name.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping

from msgspec import Struct

from hpcrun.secrets.tokens import looks_random

_PLAIN = re.compile(rb"[A-Za-z0-9._~+/=-]+")
# Of hexadecimal digits, the least random characters in use, 80 bits.
_SHORTEST = 20
_DIFFERENT = 10


class SecretMark(Struct, frozen=True, kw_only=True):
    """The mark of one secret: ``length`` in bytes, ``others`` are its characters that are neither
    letters nor digits.
    """

    name: str
    length: int
    others: bytes
    key: bytes
    digest: bytes

    def fits(self, value: bytes) -> bool:
        """Return whether a value is the secret."""
        return _digest(value, self.key) == self.digest


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
        if len(value) >= _SHORTEST
        and len(set(value)) >= _DIFFERENT
        and _PLAIN.fullmatch(value)
        and looks_random(value, shortest_hex=_SHORTEST)
    ]


def _digest(value: bytes, key: bytes) -> bytes:
    return hashlib.blake2b(value, key=key, digest_size=16).digest()
