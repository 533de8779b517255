"""Why nothing was found in a log, and what to do about it."""

from __future__ import annotations

from hpcrun.metrics.parse import ParsedRun
from hpcrun.views.numbers import count_of

# How much of a file's begin tells what it is.
HEAD = 1 << 16

_UNDERSTOOD = (
    "understood are the logs of the common frameworks, and lines such as step=3 loss=2.1, "
    '"step: 3, loss: 2.1", {"step": 3, "loss": 2.1}, CSV with a header; for any other name '
    r"--pattern 'at (?P<step>\d+) cost (?P<loss>\S+)'"
)
# Magic numbers: begin of the file, at which offset, what it is and what to do (file(1)'s magic).
_MAGIC: tuple[tuple[bytes, int, str, str], ...] = (
    (b"\x28\xb5\x2f\xfd", 0, "compressed by zstd", "zstd -d"),
    (b"\x04\x22\x4d\x18", 0, "compressed by lz4", "lz4 -d"),
    (b"PK\x03\x04", 0, "a zip archive (PyTorch's checkpoints are, too)", "unzip"),
    (b"7z\xbc\xaf\x27\x1c", 0, "a 7z archive", "7z x"),
    (b"ustar", 257, "a tar archive", "tar xf"),
    (b"\x89HDF", 0, "an HDF5 file", ""),
    (b"\x80\x02", 0, "a pickle", ""),
    (b"\x80\x04", 0, "a pickle", ""),
    (b"SQLite format 3", 0, "an SQLite database", ""),
    (b"brain.Event:", 24, "a TensorBoard event file", ""),
    (b":W&B", 0, "a W&B run file", ""),
)
# What is unpacked before it is read: gzip, bzip2, xz.
_UNPACKED = (b"\x1f\x8b", b"BZh", b"\xfd7zXZ")


def nothing_found(run: ParsedRun, head: bytes | None = None) -> list[str]:
    """Say what was read in vain, why, and what would have been understood.

    ``head``: the first bytes of the file, None if they are not known.
    """
    lines = f"{count_of(run.lines, 'line')}, " if run.lines else ""
    read = f"{count_of(run.files, 'file')}, {lines}{count_of(run.bytes, 'byte')}"
    if not run.files:
        return [f"{run.source}: no log yet"]
    why = reason(run, head)
    first = f"{run.source}: no metrics in {read}" + (f": {why}" if why else "")
    return [first] if why else [first, _UNDERSTOOD]


def reason(run: ParsedRun, head: bytes | None) -> str:
    """Tell why a log holds nothing, as far as its begin shows; "" if it does not.

    >>> from hpcrun.metrics.parse import parse_chunks
    >>> pointer = b"version https://git-lfs.github.com/spec/v1\\noid sha256:00\\nsize 9\\n"
    >>> reason(parse_chunks("a.log", [(0, [pointer])]), pointer)
    'it is a git-lfs pointer, not the log; git lfs pull fetches that'
    """
    if not run.bytes:
        return "it is empty" if run.files == 1 else "they are empty"
    if not head:
        return ""
    if head.startswith(b"version https://git-lfs"):
        return "it is a git-lfs pointer, not the log; git lfs pull fetches that"
    for magic, offset, what, command in _MAGIC:
        if head[offset : offset + len(magic)] == magic:
            return f"it is {what}" + (f"; unpack it first ({command})" if command else "")
    if head.lstrip()[:15].lower().startswith((b"<!doctype html", b"<html")):
        return "it is a web page, perhaps a login or an error page instead of the log"
    if head.startswith(_UNPACKED):
        return ""
    odd = sum(byte < 9 or 13 < byte < 27 or 27 < byte < 32 for byte in head)
    if odd > len(head) * 0.1:
        return "it is not text"
    bars = sum(b"it/s" in line or b"s/it" in line for line in head.splitlines())
    if bars and bars > 0.5 * sum(bool(line.strip()) for line in head.splitlines()):
        return "it has progress bars, but none that shows a value (tqdm's set_postfix adds them)"
    return ""
