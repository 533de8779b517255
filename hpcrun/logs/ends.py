"""Finds where the last lines of a log begin, without reading the rest."""

from __future__ import annotations

from collections.abc import Callable

from hpcrun.transport import Transport

_BLOCKS = (1 << 16, 1 << 22)


def start_of_last(
    transport: Transport,
    path: str,
    count: int,
    keep: Callable[[bytes], bool] | None = None,
    *,
    end: int | None = None,
) -> int:
    """Return the offset (bytes) at which the last ``count`` lines begin; 0 if there are fewer.

    Lines end at newlines; one without an end counts too. With ``keep`` only lines that it likes
    are counted; with ``end`` those before that offset. Raises OSError.
    """
    end = transport.size(path) if end is None else end
    if count == 0:
        return end
    block, rest, is_last, found = _BLOCKS[0], b"", True, 0
    while end > 0:
        first = max(0, end - block)
        data = transport.read(path, first, end - first) + rest
        # ``rest`` is the begin of a line whose end was seen in the block after.
        at = len(data)
        if is_last and data.endswith(b"\n"):
            at -= 1
        is_last = False
        while (newline := data.rfind(b"\n", 0, at)) >= 0:
            if keep is None or keep(data[newline + 1 : at]):
                found += 1
                if found == count:
                    return first + newline + 1
            at = newline
        # Without a test the text of the line is of no interest, however long it is.
        rest = data[:at] + b"\n" if keep is not None else b""
        is_last = keep is not None
        end, block = first, min(2 * block, _BLOCKS[1])
    return 0
