"""Mask secrets in logs, and find them in any text.

Blocks are first searched for a few strings, and the rules are applied only around these. Secrets of
the run whose values are no longer known are recognised by their marks.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from hpcrun.secrets import kinds

MASK = b"***"
# Shorter values may appear in a log by chance: they are masked only after their names.
MIN_VALUE_LENGTH = 6
# Shorter values get no mark. 20 hexadecimal digits, the least random alphabet in use, are 80 bits.
_MIN_MARKED_LENGTH = 20
_MIN_DISTINCT = 10
_MARKED = re.compile(rb"[A-Za-z0-9._~+/=-]+")
# Bytes that are searched around a candidate, and kept before a piece of a long line.
CONTEXT = 4096
_BLOCK = 1 << 18

_ESCAPE = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b\n]*(?:\x07|\x1b\\)?|[()][0-9A-Z])")
_LETTERS = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"


def _build_table(letters: bytes) -> bytes:
    """Build the translation table that maps these characters to x and all others to a blank."""
    return bytes(120 if char in letters else 32 for char in range(256))


_ALPHANUMERIC = _build_table(_LETTERS)
_WORDS = _build_table(_LETTERS + b"_-.")
_BASE64 = _build_table(_LETTERS + b"+/")
_RETURNS = bytes(10 if char == 13 else char for char in range(256))
_DIGITS = b"0123456789"
_BLANKS = b" \t\"'\\]"


class SecretMark(Struct, frozen=True, kw_only=True):
    """A mark, by which a secret is recognised in a log without its value.

    The values are deleted when a run ends, but its log may be read years later. Only long random
    values get a mark, because a brute-force search could find others.

    Attributes:
        name: The name of the secret.
        length: The length of the value in bytes.
        others: The characters of the value other than letters and digits.
        key: The key of the digest.
        digest: The keyed digest of the value.
    """

    name: str
    length: int
    others: bytes
    key: bytes
    digest: bytes

    def matches(self, value: bytes) -> bool:
        """Return True if a value is the marked secret."""
        return _digest(value, self.key) == self.digest


def mark_secrets(values: Mapping[str, bytes], key: bytes) -> list[SecretMark]:
    """Build the marks of all values that qualify; each line of a value has its own mark.

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
        for name, text in values.items()
        for value in map(bytes.strip, text.splitlines())
        if len(value) >= _MIN_MARKED_LENGTH
        and len(set(value)) >= _MIN_DISTINCT
        and _MARKED.fullmatch(value)
        and kinds.looks_random(value, shortest_hex=_MIN_MARKED_LENGTH)
    ]


def _digest(value: bytes, key: bytes) -> bytes:
    import hashlib  # imported here because it is slow to load

    return hashlib.blake2b(value, key=key, digest_size=16).digest()


class Masker:
    """Masks the secrets of one run, and strings that look like secrets."""

    def __init__(
        self,
        *,
        names: Sequence[str] = (),
        values: Sequence[bytes] = (),
        marks: Sequence[SecretMark] = (),
    ) -> None:
        """Create a masker for the secrets of a run.

        Args:
            names: The names of its secrets.
            values: The known values. A value of several lines is masked line by line, because the
                lines may be printed separately.
            marks: The marks of values that are no longer known.
        """
        self._names = kinds.compile_names(names)
        self._needles = tuple(name.encode("utf-8", "surrogateescape") for name in names if name)
        lines = {line.strip() for value in values for line in value.splitlines()}
        self._values = sorted({v for v in lines if len(v) >= MIN_VALUE_LENGTH}, key=len)[::-1]
        self._marks = [(mark, _build_table(_LETTERS + mark.others)) for mark in marks]

    def mask(self, data: bytes, before: bytes = b"") -> bytes:
        """Mask whole lines, or a piece of a long line.

        ``before`` is the text before a piece in the same line; it is searched but not returned.
        """
        text = before + data
        spans = _merge_spans(self._find_spans(text))
        if not spans:
            return data
        made, at = [], len(before)
        for start, end in spans:
            if end <= at:
                continue
            made += [text[at : max(at, start)], MASK, *_ESCAPE.findall(text, max(at, start), end)]
            at = end
        return b"".join((*made, text[at:]))

    def text(self, text: str) -> str:
        masked = self.mask(text.encode("utf-8", "surrogateescape"))
        return masked.decode("utf-8", "surrogateescape")

    def _find_spans(self, text: bytes) -> Iterator[tuple[int, int]]:
        if b"\x1b" not in text:
            yield from self._find_plain_spans(text)
            return
        # Escape sequences may separate a name from its value, or occur within a value.
        plain, starts, shifts = _remove_escapes(text)
        for start, end in self._find_plain_spans(plain):
            first = start + shifts[bisect_right(starts, start) - 1]
            yield first, end - 1 + shifts[bisect_right(starts, end - 1) - 1] + 1

    def _find_plain_spans(self, text: bytes) -> Iterator[tuple[int, int]]:
        for value in self._values:
            at = text.find(value)
            while at >= 0:
                yield at, at + len(value)
                at = text.find(value, at + len(value))
        for mark, table in self._marks:
            yield from _find_marked(text, mark, table)
        if b"PRIVATE KEY" in text:
            yield from kinds.find_private_keys(text)
        # A block consists of whole lines, or is searched with context on both sides.
        at = 0
        while at < len(text):
            end = text.find(b"\n", at + _BLOCK, at + 2 * _BLOCK) + 1 or at + _BLOCK
            first = max(0, at - CONTEXT) if text[at - 1 : at] != b"\n" else at
            last = end if text[end - 1 : end] == b"\n" else end + CONTEXT
            for start, stop in self._find_in_block(text[first:last]):
                yield first + start, first + stop
            at = end

    def _find_in_block(self, block: bytes) -> Iterator[tuple[int, int]]:
        if self._names is not None and any(needle in block for needle in self._needles):
            for found in self._names.finditer(block):
                yield found.span("value")
        if not _is_clean(block):
            yield from _find_tokens(block)
            yield from _find_key_lines(block)
            yield from _find_values_after_names(block)


class FileMasker:
    """Masks secrets in a file that is read piece by piece."""

    def __init__(self, masker: Masker) -> None:
        self._masker = masker
        self._before = b""

    def mask(self, data: bytes) -> bytes:
        """Mask the next piece, and remove NUL bytes.

        The text before the piece is kept as context if it ends within a line or a private key.
        """
        data = data.replace(b"\0", b"") if b"\0" in data else data
        before, self._before = self._before, b""
        if before or b"-----BEGIN " in data:
            self._before = kinds.find_open_private_key(before + data)
        if not self._before and not data.endswith((b"\n", b"\r")):
            self._before = data[-CONTEXT:]
        return self._masker.mask(data, before)


def contains_secret(text: str) -> bool:
    """Return True if a text contains a string that would be masked in a log.

    >>> contains_secret("export WANDB_API_KEY=abcd1234"), contains_secret(
    ...     "export HF_TOKEN=$HF_TOKEN")
    (True, False)
    """
    return Masker().text(text) != text


def _is_clean(block: bytes) -> bool:
    """Return True if a block surely has no secret of a known form; fast if lines are similar.

    Most lines of a log differ only in digits: without digits, few distinct lines are searched.
    """
    shapes = b"\n".join(set(block.translate(_RETURNS, _DIGITS).split(b"\n")))
    if len(shapes) * 4 > len(block) or kinds.START.search(shapes):
        return False
    if b"x" * kinds.KEY_RUN in shapes.translate(_BASE64):
        return False
    return not _find_roots(shapes.lower())


def _find_roots(low: bytes) -> list[bytes]:
    """List the words in a lower-case block after which a secret may follow."""
    # URLs are frequent, but few contain the @ after a password.
    found = [root for root in kinds.ROOTS if (b"@" if root == b"://" else root) in low]
    if not found or kinds.OPTION in low:
        return found
    bare = low.translate(None, _BLANKS)
    return [root for root in found if any(needle in bare for needle in kinds.ROOTS[root])]


def _find_tokens(block: bytes) -> Iterator[tuple[int, int]]:
    """Find tokens in the words that have a long run of letters and digits."""
    words, end = b"", 0
    for at, _ in _find_runs(block, _ALPHANUMERIC, kinds.TOKEN_RUN):
        if at < end:
            continue  # part of the previous word
        words = words or block.translate(_WORDS) + b" "
        first, end = words.rfind(b" ", 0, at) + 1, words.find(b" ", at)
        word = block[first:end]
        if not word.islower() or any(start in word for start in kinds.LOW_STARTS):
            for found in kinds.TOKEN.finditer(word):
                yield first + found.start(), first + found.end()


def _find_key_lines(block: bytes) -> Iterator[tuple[int, int]]:
    """Find the lines of private keys without BEGIN and END."""
    for at, stop in _find_runs(block, _BASE64, kinds.KEY_RUN):
        first = max(block.rfind(b"\n", max(0, at - 200), at) + 1, at - 200, 0)
        end = block.find(b"\n", stop, stop + 200)
        end = min(len(block), stop + 200) if end < 0 else end
        if end - first < 200 and kinds.is_private_key_line(block[first:end]):
            yield first, end


def _find_values_after_names(block: bytes) -> Iterator[tuple[int, int]]:
    """Find secrets after the words of ROOTS."""
    low = block.lower()
    for root in _find_roots(low):
        at, known = low.find(root), 0
        while at >= 0:
            span = kinds.find_secret_after(block, root, at, known)
            if span is not None:
                known = max(known, span[1])
                yield span
            at = low.find(root, at + len(root))


def _find_marked(text: bytes, mark: SecretMark, table: bytes) -> Iterator[tuple[int, int]]:
    """Find a marked secret by the digest of every word with its length and characters."""
    for at, end in _find_runs(text, table, mark.length):
        # Skip long blocks, in which no secret is a word of its own, and words such as "-----".
        if end - at <= mark.length + CONTEXT:
            for start in range(at, end - mark.length + 1):
                word = text[start : start + mark.length]
                if len(set(word)) > 4 and mark.matches(word):
                    yield start, start + mark.length


def _find_runs(text: bytes, table: bytes, shortest: int) -> Iterator[tuple[int, int]]:
    """Find the spans of runs of a table's characters with a minimum length."""
    runs, needle = text.translate(table), b"x" * shortest
    at = runs.find(needle)
    while at >= 0:
        end = runs.find(b" ", at)
        end = len(runs) if end < 0 else end
        yield at, end
        at = runs.find(needle, end)


def _merge_spans(spans: Iterator[tuple[int, int]]) -> list[tuple[int, int]]:
    """Sort spans and merge those that overlap."""
    made: list[tuple[int, int]] = []
    for start, end in sorted(set(spans)):
        if made and start < made[-1][1]:
            made[-1] = (made[-1][0], max(end, made[-1][1]))
        else:
            made.append((start, end))
    return made


def _remove_escapes(text: bytes) -> tuple[bytes, list[int], list[int]]:
    """Remove escape sequences; return the text, the start of each piece in it, and its shift."""
    pieces, starts, shifts = [], [0], [0]
    at = length = 0
    for found in _ESCAPE.finditer(text):
        pieces.append(text[at : found.start()])
        length += found.start() - at
        at = found.end()
        starts.append(length)
        shifts.append(at - length)
    pieces.append(text[at:])
    return b"".join(pieces), starts, shifts


def is_secret_setting(key: str, value: str) -> bool:
    """Return True if a setting may be secret; stricter than for logs, because reports are shared.

    >>> keys = ("env.HF_TOKEN", "args.--wandb-key", "args.--pad_token")
    >>> [is_secret_setting(key, "x") for key in keys]
    [True, True, False]
    """
    name = key.rpartition(".")[2]
    separator = " " if name.startswith("-") else "="
    return (
        kinds.is_secret_name(name)
        or kinds.begins_token(value)
        or contains_secret(f"{name}{separator}{value}")
    )
