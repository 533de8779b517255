"""Masks secrets in pieces of a log, and finds them in any text.

Blocks are searched for a few needles first; only around them are the rules applied. A value of the
run's own secrets that is not known any more is found by its mark.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from hpcrun.secrets import kinds

MASK = b"***"
# A shorter value of a secret stands in a log by chance: it is masked after its name alone.
SHORTEST_VALUE = 6
# A shorter value gets no mark: of hexadecimal digits, the least random characters in use, 80 bits.
_SHORTEST_MARKED = 20
_DIFFERENT = 10
_MARKED = re.compile(rb"[A-Za-z0-9._~+/=-]+")
# How much of a line is searched around a needle, and before a piece of a long line.
CONTEXT = 4096
_BLOCK = 1 << 18

_ESCAPE = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b\n]*(?:\x07|\x1b\\)?|[()][0-9A-Z])")
_LETTERS = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"


def _table(letters: bytes) -> bytes:
    """Make the table that turns these letters into x and all others into a blank."""
    return bytes(120 if char in letters else 32 for char in range(256))


_ALPHANUMERIC = _table(_LETTERS)
_WORDS = _table(_LETTERS + b"_-.")
_BASE64 = _table(_LETTERS + b"+/")
_RETURNS = bytes(10 if char == 13 else char for char in range(256))
_DIGITS = b"0123456789"
_BLANKS = b" \t\"'\\]"


class SecretMark(Struct, frozen=True, kw_only=True):
    """The mark of one secret, which recognises it in a log and does not contain it.

    The values themselves are removed when a run ends, and its log may be read years later. A mark
    is a keyed digest and the value's ``length`` in bytes; ``others`` are its characters that are
    neither letters nor digits. Only long random values get one: nobody finds those by trying.
    """

    name: str
    length: int
    others: bytes
    key: bytes
    digest: bytes

    def fits(self, value: bytes) -> bool:
        return _digest(value, self.key) == self.digest


def mark_secrets(values: Mapping[str, bytes], key: bytes) -> list[SecretMark]:
    """Make the marks of all values that can have one; of several lines each has its own.

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
        if len(value) >= _SHORTEST_MARKED
        and len(set(value)) >= _DIFFERENT
        and _MARKED.fullmatch(value)
        and kinds.looks_random(value, shortest_hex=_SHORTEST_MARKED)
    ]


def _digest(value: bytes, key: bytes) -> bytes:
    import hashlib  # here: it takes long to load

    return hashlib.blake2b(value, key=key, digest_size=16).digest()


class Masker:
    """Knows one run's secrets, and what secrets look like."""

    def __init__(
        self,
        *,
        names: Sequence[str] = (),
        values: Sequence[bytes] = (),
        marks: Sequence[SecretMark] = (),
    ) -> None:
        """Take the run's own: ``names`` of its secrets, the ``values`` that are known.

        A value of several lines is hidden line by line, for so it may come.
        """
        self._names = kinds.compile_names(names)
        self._needles = tuple(name.encode("utf-8", "surrogateescape") for name in names if name)
        lines = {line.strip() for value in values for line in value.splitlines()}
        self._values = sorted({v for v in lines if len(v) >= SHORTEST_VALUE}, key=len)[::-1]
        self._marks = [(mark, _table(_LETTERS + mark.others)) for mark in marks]

    def mask(self, data: bytes, before: bytes = b"") -> bytes:
        """Return whole lines, or a piece of a long one, with *** for each secret.

        ``before`` is what stands before a piece in the same line: it is searched, not returned.
        """
        text = before + data
        spans = _merged(self._spans(text))
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

    def _spans(self, text: bytes) -> Iterator[tuple[int, int]]:
        if b"\x1b" not in text:
            yield from self._plain_spans(text)
            return
        # Colours may stand between a name and its value, and within a value.
        plain, starts, shifts = _without_escapes(text)
        for start, end in self._plain_spans(plain):
            first = start + shifts[bisect_right(starts, start) - 1]
            yield first, end - 1 + shifts[bisect_right(starts, end - 1) - 1] + 1

    def _plain_spans(self, text: bytes) -> Iterator[tuple[int, int]]:
        for value in self._values:
            at = text.find(value)
            while at >= 0:
                yield at, at + len(value)
                at = text.find(value, at + len(value))
        for mark, table in self._marks:
            yield from _marked_in(text, mark, table)
        if b"PRIVATE KEY" in text:
            yield from kinds.find_private_keys(text)
        # A block ends where a line does, or with context on both sides.
        at = 0
        while at < len(text):
            end = text.find(b"\n", at + _BLOCK, at + 2 * _BLOCK) + 1 or at + _BLOCK
            first = max(0, at - CONTEXT) if text[at - 1 : at] != b"\n" else at
            last = end if text[end - 1 : end] == b"\n" else end + CONTEXT
            for start, stop in self._in_block(text[first:last]):
                yield first + start, first + stop
            at = end

    def _in_block(self, block: bytes) -> Iterator[tuple[int, int]]:
        if self._names is not None and any(needle in block for needle in self._needles):
            for found in self._names.finditer(block):
                yield found.span("value")
        if not _is_clean(block):
            yield from _tokens_in_block(block)
            yield from _key_lines(block)
            yield from _values_after_names(block)


class FileMasker:
    """Masks secrets in what is read of one file, piece by piece."""

    def __init__(self, masker: Masker) -> None:
        self._masker = masker
        self._before = b""

    def mask(self, data: bytes) -> bytes:
        """Return the next piece with *** for each secret; bytes of zero are left out.

        What stands before it in a long line, or in a private key, shows what it is.
        """
        data = data.replace(b"\0", b"") if b"\0" in data else data
        before, self._before = self._before, b""
        if before or b"-----BEGIN " in data:
            self._before = kinds.find_open_private_key(before + data)
        if not self._before and not data.endswith((b"\n", b"\r")):
            self._before = data[-CONTEXT:]
        return self._masker.mask(data, before)


def contains_secret(text: str) -> bool:
    """Return whether something in a text looks like a secret: what a mask would hide in a log.

    >>> contains_secret("export WANDB_API_KEY=abcd1234"), contains_secret(
    ...     "export HF_TOKEN=$HF_TOKEN")
    (True, False)
    """
    return Masker().text(text) != text


def _is_clean(block: bytes) -> bool:
    """Return whether a block surely has no secret of a known form: quick where lines are alike.

    Lines of a log differ mostly in their digits: without these few are left to be searched.
    """
    shapes = b"\n".join(set(block.translate(_RETURNS, _DIGITS).split(b"\n")))
    if len(shapes) * 4 > len(block) or kinds.START.search(shapes):
        return False
    if b"x" * kinds.KEY_RUN in shapes.translate(_BASE64):
        return False
    return not _roots_in(shapes.lower())


def _roots_in(low: bytes) -> list[bytes]:
    """List the words behind which a secret may stand in a block, which is in lower case."""
    # A word of an address is in many lines, and what stands before its @ in few.
    found = [root for root in kinds.ROOTS if (b"@" if root == b"://" else root) in low]
    if not found or kinds.OPTION in low:
        return found
    bare = low.translate(None, _BLANKS)
    return [root for root in found if any(needle in bare for needle in kinds.ROOTS[root])]


def _tokens_in_block(block: bytes) -> Iterator[tuple[int, int]]:
    """Find tokens in the words that have a long run of letters and digits."""
    words, end = b"", 0
    for at, _ in _runs_in(block, _ALPHANUMERIC, kinds.TOKEN_RUN):
        if at < end:
            continue  # in the word before
        words = words or block.translate(_WORDS) + b" "
        first, end = words.rfind(b" ", 0, at) + 1, words.find(b" ", at)
        word = block[first:end]
        if not word.islower() or any(start in word for start in kinds.LOW_STARTS):
            for found in kinds.TOKEN.finditer(word):
                yield first + found.start(), first + found.end()


def _key_lines(block: bytes) -> Iterator[tuple[int, int]]:
    """Find the lines of private keys whose BEGIN and END are not there."""
    for at, stop in _runs_in(block, _BASE64, kinds.KEY_RUN):
        first = max(block.rfind(b"\n", max(0, at - 200), at) + 1, at - 200, 0)
        end = block.find(b"\n", stop, stop + 200)
        end = min(len(block), stop + 200) if end < 0 else end
        if end - first < 200 and kinds.is_private_key_line(block[first:end]):
            yield first, end


def _values_after_names(block: bytes) -> Iterator[tuple[int, int]]:
    low = block.lower()
    for root in _roots_in(low):
        at, known = low.find(root), 0
        while at >= 0:
            span = kinds.find_secret_after(block, root, at, known)
            if span is not None:
                known = max(known, span[1])
                yield span
            at = low.find(root, at + len(root))


def _marked_in(text: bytes, mark: SecretMark, table: bytes) -> Iterator[tuple[int, int]]:
    """Find a secret by its digest: all words of its characters that are long enough are tried."""
    for at, end in _runs_in(text, table, mark.length):
        # A ruler of dashes is no secret; nor is a block of kilobytes, in which none stands alone.
        if end - at <= mark.length + CONTEXT:
            for start in range(at, end - mark.length + 1):
                word = text[start : start + mark.length]
                if len(set(word)) > 4 and mark.fits(word):
                    yield start, start + mark.length


def _runs_in(text: bytes, table: bytes, shortest: int) -> Iterator[tuple[int, int]]:
    """Find runs of a table's characters that are long enough: begin and end of each."""
    runs, needle = text.translate(table), b"x" * shortest
    at = runs.find(needle)
    while at >= 0:
        end = runs.find(b" ", at)
        end = len(runs) if end < 0 else end
        yield at, end
        at = runs.find(needle, end)


def _merged(spans: Iterator[tuple[int, int]]) -> list[tuple[int, int]]:
    made: list[tuple[int, int]] = []
    for start, end in sorted(set(spans)):
        if made and start < made[-1][1]:
            made[-1] = (made[-1][0], max(end, made[-1][1]))
        else:
            made.append((start, end))
    return made


def _without_escapes(text: bytes) -> tuple[bytes, list[int], list[int]]:
    """Take the escape sequences out; return where pieces begin then, and by how much they moved."""
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
