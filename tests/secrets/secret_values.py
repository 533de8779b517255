"""Values that must be recognised as secrets."""

from __future__ import annotations

HEX = "0123456789abcdef0123456789abcdef01234567"
MIXED = "aB3dE5gH7jK9mN1pQ3sT5vW7xY9zA1cD3fG5"
