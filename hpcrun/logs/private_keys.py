"""Finds private keys in a log: blocks of many lines, of which a reader may see a part alone.

Their form is RFC 7468's (PEM): base64 between BEGIN and END, in lines of 64 characters, OpenSSH's
of 70; older tools wrap at 76 (RFC 2045). In JSON, as in a service account's file, the whole block
is one line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

# A key of 16384 bits, the largest that tools make, has 12,700 bytes of base64.
LONGEST = 1 << 14
_BEGIN = re.compile(rb"-----BEGIN (?:[A-Z0-9]+ ){0,3}PRIVATE KEY(?: BLOCK)?-----")
_END = re.compile(rb"-----END (?:[A-Z0-9]+ ){0,3}PRIVATE KEY(?: BLOCK)?-----")
# What launchers put before a line: srun --label, torchrun --tee.
_LABEL = rb"(?:\[?\w{1,16}\]?: ?)?"
# Before the lines of an encrypted block stand headers (RFC 1421), and a blank line.
_HEADER = re.compile(rb"[ \t]*" + _LABEL + rb"(?:[A-Za-z-]{3,20}: [^\r\n]{0,80})?[ \t]*\r?")
_LINE = re.compile(rb"[ \t]*" + _LABEL + rb"(?P<body>[A-Za-z0-9+/]{1,76}={0,2})[ \t]*\r?")
_WIDTHS = (64, 70, 76)
_BODY = re.compile(rb"[A-Za-z0-9+/]{32}")
# Of so many characters that are drawn by lot as many are different, and all kinds are there.
_DIFFERENT = 20
# In a line of a key, letters, + and / without digits: far more than so many.
RUN = 40


def keys_in(text: bytes) -> Iterator[tuple[int, int]]:
    r"""Give begin and end of what stands between BEGIN and END; one of them may be missing.

    >>> body = b"MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQC7VJTUt9Us8cKj"
    >>> list(keys_in(b"-----BEGIN PRIVATE KEY-----\n" + body + b"\nxyz=\nnext\n"))
    [(28, 97)]
    >>> list(keys_in(b"x y\n" + body + b"\nxyz=\n-----END RSA PRIVATE KEY-----\n"))
    [(4, 73)]
    """
    for begin in _BEGIN.finditer(text):
        end = _END.search(text, begin.end(), begin.end() + LONGEST)
        if end is not None and _BODY.search(text, begin.end(), end.start()):
            between = text[begin.end() : end.start()]
            yield end.start() - len(between.lstrip(b"\r\n")), begin.end() + len(between.rstrip())
        elif end is None:
            yield from _after_begin(text, begin.end())
    for end in _END.finditer(text):
        yield from _before_end(text, end.start())


def open_key(text: bytes) -> bytes:
    r"""Return what is left open at a text's end: from the BEGIN of a key whose END is to come.

    >>> open_key(b"x\n-----BEGIN PRIVATE KEY-----\n")
    b'-----BEGIN PRIVATE KEY-----\n'
    >>> open_key(b"-----BEGIN PRIVATE KEY-----\nstep 1\n")
    b''
    """
    low = text.rfind(b"-----BEGIN ", max(0, len(text) - LONGEST))
    begin = _BEGIN.match(text, low) if low >= 0 else None
    if begin is None or _END.search(text, begin.end()):
        return b""
    inside = [stop for _, stop in _after_begin(text, begin.end())]
    rest = text[max([begin.end(), *inside]) :]
    return text[low:] if not rest.strip() else b""


def is_key_line(line: bytes) -> bool:
    """Tell whether a whole line has the looks of one inside a key: long, and drawn by lot."""
    found = _LINE.fullmatch(line)
    if found is None or len(found["body"]) not in _WIDTHS:
        return False
    body = found["body"]
    kinds = (rb"[0-9]", rb"[a-z]", rb"[A-Z]")
    return len(set(body)) >= _DIFFERENT and all(re.search(kind, body) for kind in kinds)


def _after_begin(text: bytes, at: int) -> Iterator[tuple[int, int]]:
    """What of a block is there whose END is not: its lines, or the rest of one line in JSON."""
    end = text.find(b"\n", at)
    end = len(text) if end < 0 else end
    if text[at:end].strip():
        if text.startswith((b"\\n", b"\\r", b"\\\\n"), at):
            yield at, end
        return
    first = stop = min(end + 1, len(text))
    is_body = False
    while stop < len(text):
        end = text.find(b"\n", stop)
        end = len(text) if end < 0 else end
        found = _LINE.fullmatch(text, stop, end)
        is_long = found is not None and len(found["body"]) in _WIDTHS
        if (
            not is_long
            and not (is_body and found)
            and (is_body or _HEADER.fullmatch(text, stop, end) is None)
        ):
            break
        stop = min(end + 1, len(text))
        if is_body and not is_long:
            break  # the last line of a block may be short
        is_body = is_long
    if stop > first:
        yield first, stop - (text[stop - 1 : stop] == b"\n")


def _before_end(text: bytes, at: int) -> Iterator[tuple[int, int]]:
    """The lines before an END whose BEGIN may be cut off; the last one may be short."""
    first = text.rfind(b"\n", 0, at) + 1
    stop = last = first
    while first > 0:
        before = text.rfind(b"\n", 0, first - 1) + 1
        found = _LINE.fullmatch(text, before, first - 1) if first - before < 200 else None
        if found is None or (len(found["body"]) not in _WIDTHS and first != last):
            break
        first = before
    if first < stop:
        yield first, stop - 1
