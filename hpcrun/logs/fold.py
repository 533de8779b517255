"""Fold lines that several ranks print alike, for terminals."""

from __future__ import annotations

import re
from collections import OrderedDict

from hpcrun.logs.files import LogFile
from hpcrun.text import format_ranges

# The most recent distinct lines are remembered; a repetition of an older one is shown again.
_REMEMBERED_LINES = 4096
_LINES = re.compile(rb"[^\n]*\n|[^\n]+")


class RankFolder:
    """Removes lines that another rank of the same run has printed, and counts them.

    A line that rank 0 prints three times is removed up to three times from each other rank, so
    that every difference between ranks is still visible.
    """

    def __init__(self) -> None:
        # For each line: how often it was shown, and how often each rank has printed it.
        self._seen: OrderedDict[tuple[object, ...], tuple[list[int], dict[int, int]]]
        self._seen = OrderedDict()
        self._removed: dict[int, int] = {}

    def remove_repeated(self, file: LogFile, data: bytes) -> bytes:
        r"""Return the data without complete lines that another rank has already shown.

        >>> from pathlib import Path
        >>> folder = RankFolder()
        >>> [folder.remove_repeated(LogFile(Path(), 0, rank=r), b"hi\n") for r in range(4)]
        [b'hi\n', b'', b'', b'']
        >>> folder.take_note()
        'ranks 1-3: same line'
        """
        if file.rank is None or file.task:
            return data
        return b"".join(
            line for line in _LINES.findall(data) if not self._is_repeated(file, file.rank, line)
        )

    def _is_repeated(self, file: LogFile, rank: int, line: bytes) -> bool:
        if not line.endswith(b"\n"):
            return False
        key = (file.job_id, file.attempt, file.is_err, line.removeprefix(b"[rank%d]: " % rank))
        shown, printed = self._seen.setdefault(key, ([0], {}))
        self._seen.move_to_end(key)
        if len(self._seen) > _REMEMBERED_LINES:
            self._seen.popitem(last=False)
        printed[rank] = printed.get(rank, 0) + 1
        if printed[rank] <= shown[0]:
            self._removed[rank] = self._removed.get(rank, 0) + 1
            return True
        shown[0] = printed[rank]
        return False

    def take_note(self) -> str:
        """Describe the lines that were removed since the last call; "" if there are none."""
        if not self._removed:
            return ""
        ranks, count = sorted(self._removed), max(self._removed.values())
        self._removed = {}
        some = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {format_ranges(ranks)}"
        return f"{some}: same {f'{count} lines' if count > 1 else 'line'}"
