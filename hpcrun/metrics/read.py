"""Reader: the bytes of one attempt's log, in whatever pieces they come, to samples.

Pure.

A line ends at a line feed, a carriage return (progress bars) or a NUL (the hole that a truncated
file leaves). The pieces do not matter: the same bytes give the same samples. Time is linear in
the bytes; memory is bounded by one block and one line. A line of more than ``LONGEST_LINE`` bytes
is no metric line and is passed over.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from hpcrun.metrics.formats import FORMATS, strip_prefixes
from hpcrun.metrics.sample import Sample

LONGEST_LINE = 1 << 16
BLOCK = 1 << 20

# One pass of bytes.translate folds case and makes every line end a line feed, keeping offsets.
_FOLD = bytes(0x0A if i in (0x00, 0x0D) else i for i in range(256)).lower()
# Each needle with what may follow it in any of the formats that look for it.
_NEEDLES = tuple(
    (needle, re.compile(b"|".join({f.after for f in FORMATS if needle in f.needles})))
    for needle in sorted({needle for each in FORMATS for needle in each.needles})
)


class Reader:
    """Reads one log file of one attempt.

    >>> reader = Reader(attempt=0)
    >>> reader.feed(b"step=1 loss=2.5\\nstep=2 lo")
    [Sample(attempt=0, offset=0, epoch=None, step=1, split='train', name='loss', value=2.5)]
    >>> [(sample.offset, sample.value) for sample in reader.feed(b"ss=2.25\\n")]
    [(16, 2.25)]
    """

    def __init__(self, attempt: int = 0, offset: int = 0) -> None:
        """Begin at byte ``offset``, which must be where a line begins."""
        self.attempt = attempt
        self.bytes_read = 0
        self.lines_read = 0
        # Name of each format that gave samples -> how many lines.
        self.formats: dict[str, int] = {}
        self._line_offset = offset
        self._kept: list[bytes] = []
        self._kept_length = 0
        # Where every rank prints the same metric, the first rank seen with it speaks for all.
        self._rank_of: dict[str, int] = {}

    def feed(self, data: bytes) -> list[Sample]:
        """Return the samples of the lines that ``data`` completes; a cut-off last line is kept."""
        samples: list[Sample] = []
        for start in range(0, len(data), BLOCK):
            samples += self._read_block(data[start : start + BLOCK])
        return samples

    def finish(self) -> list[Sample]:
        """Return the samples of a last line that no line end completes; nothing comes after it.

        Its last word may be cut in the middle of a number, as a killed job leaves it, so only
        what stands before that word counts; a JSON object shows by itself that it is whole.

        >>> reader = Reader()
        >>> reader.feed(b"step=7 loss=2.5 lr=0.0001"), [s.name for s in reader.finish()]
        ([], ['loss'])
        """
        samples: list[Sample] = []
        if self._kept_length:
            self.lines_read += 1
        if 0 < self._kept_length <= LONGEST_LINE:
            samples = self._read_line(b"".join(self._kept), self._line_offset, whole=False)
        self._line_offset += self._kept_length
        self._kept, self._kept_length = [], 0
        return samples

    def _read_block(self, block: bytes) -> list[Sample]:
        self.bytes_read += len(block)
        self.lines_read += block.count(b"\n")
        folded = block.translate(_FOLD)
        first_end = folded.find(b"\n")
        if first_end < 0:
            self._keep(block)
            return []
        self._keep(block[:first_end])
        samples: list[Sample] = []
        if 0 < self._kept_length <= LONGEST_LINE:
            line = b"".join(self._kept)
            for start, end in _lines_to_read(line.translate(_FOLD) + b"\n"):
                samples += self._read_line(line[start:end], self._line_offset)
        block_offset = self._line_offset + self._kept_length - first_end
        last_end = folded.rfind(b"\n")
        for start, end in _lines_to_read(folded, first_end + 1):
            if end - start <= LONGEST_LINE:
                samples += self._read_line(block[start:end], block_offset + start)
        self._line_offset = block_offset + last_end + 1
        self._kept, self._kept_length = [], 0
        self._keep(block[last_end + 1 :])
        return samples

    def _keep(self, piece: bytes) -> None:
        self._kept_length += len(piece)
        if self._kept_length > LONGEST_LINE:
            self._kept = []
        elif piece:
            self._kept.append(piece)

    def _read_line(self, line: bytes, offset: int, *, whole: bool = True) -> list[Sample]:
        stripped = strip_prefixes(line.decode("utf-8", "replace"))
        for form in FORMATS:
            text = stripped.text
            if not (whole or form.shows_its_end):
                text = text[: max(text.rfind(mark) for mark in " \t,;|") + 1]
            row = form.read(text)
            if row is None:
                continue
            rank = stripped.rank if stripped.rank is not None else row.rank
            if rank is None and row.step is not None:
                rank = stripped.label
            samples = [
                Sample(self.attempt, offset, row.epoch, row.step, row.split, name, value)
                for name, value in row.values
                if rank is None or self._rank_of.setdefault(name, rank) == rank
            ]
            if samples:
                self.formats[form.name] = self.formats.get(form.name, 0) + 1
            return samples
        return []


def _lines_to_read(folded: bytes, start: int = 0) -> Iterator[tuple[int, int]]:
    """Yield begin and end of each whole line from ``start`` on that may be a metric line.

    ``start`` begins a line. Jumping from needle to needle never looks at what stands between:
    this is what makes noise cheap.

    >>> list(_lines_to_read(b"a\\nstep=3 loss=2\\nno loss\\nloss: 2\\nloss: 3"))
    [(2, 15), (24, 31)]
    """
    last_end = folded.rfind(b"\n")
    places = [_find(folded, needle, start) for needle in _NEEDLES]
    while hits := [place for place in places if 0 <= place < last_end]:
        place = min(hits)
        begin = max(folded.rfind(b"\n", start, place) + 1, start)
        end = folded.index(b"\n", place)
        yield begin, end
        start = end + 1
        for index, needle in enumerate(_NEEDLES):
            if 0 <= places[index] < start:
                places[index] = _find(folded, needle, start)


def _find(folded: bytes, needle: tuple[bytes, re.Pattern[bytes]], start: int) -> int:
    """Return the next place of a needle that is followed as it must be, -1 if there is none."""
    text, after = needle
    place = folded.find(text, start)
    while place >= 0 and not after.match(folded, place + len(text)):
        place = folded.find(text, place + 1)
    return place


def read_samples(chunks: Iterable[bytes], attempt: int = 0) -> list[Sample]:
    """Read a whole log.

    >>> [(s.step, s.value) for s in read_samples([b"step: 1, loss: 2", b".5\\r\\nbye\\n"])]
    [(1, 2.5)]
    """
    reader = Reader(attempt)
    samples = [sample for chunk in chunks for sample in reader.feed(chunk)]
    return samples + reader.finish()
