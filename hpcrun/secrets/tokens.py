"""Secrets that are known by their own form: tokens of known issuers, and private keys.

The forms of tokens are their issuers' (GitHub's "About authentication", Slack's "Token types",
Google's API keys, AWS's "IAM identifiers", RFC 7519 for JWT) and as secret scanners know them.
Private keys are blocks of many lines, of which a reader may see only a part: base64 between BEGIN
and END (RFC 7468, PEM), in lines of 64 characters, OpenSSH's of 70; older tools wrap at 76
(RFC 2045). In JSON, as in a service account's file, the whole block is one line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise

from hpcrun.patterns import pattern_of

TOKEN = pattern_of(
    rb"""
    (?<![A-Za-z0-9_])
    (?: hf_[A-Za-z0-9]{20,}                                             # Hugging Face
      | sk-(?=[A-Za-z0-9_-]*[0-9])(?=[A-Za-z0-9_-]*[A-Z])[A-Za-z0-9_-]{20,}    # OpenAI, Anthropic
      | gh[opsur]_[A-Za-z0-9]{20,} | github_pat_[A-Za-z0-9_]{20,}       # GitHub
      | glpat-[A-Za-z0-9_.-]{15,}                                       # GitLab
      | A(?:KIA|SIA)[A-Z0-9]{16}(?![A-Za-z0-9])                         # AWS
      | AIza[A-Za-z0-9_-]{35}                                           # Google
      | xox[a-z]-(?:[A-Za-z0-9]+-)*[A-Za-z0-9]{12,}                     # Slack
      | eyJ[A-Za-z0-9_-]{6,}\.eyJ[A-Za-z0-9_-]{6,}\.[A-Za-z0-9_-]+      # a JSON Web Token
      | wandb_v[0-9]_[A-Za-z0-9_]{20,}                                  # Weights & Biases
      | nvapi-[A-Za-z0-9_-]{40,}                                        # NVIDIA
    )
    """,
    re.VERBOSE,
)
_STARTS = (
    rb"(?<![A-Za-z0-9_])(?:hf_|sk-|gh[opsur]_|github_pat_|glpat-|A(?:KIA|SIA)|AIza|xox|eyJ|wandb_v"
    rb"|nvapi-)"
)
# How they begin, digits left out.
START = pattern_of(_STARTS)
# The shortest run of letters and digits in them, by which blocks are searched.
TOKEN_RUN = 12
# The beginnings of those that may have small letters and digits alone.
LOW_STARTS = (b"hf_", b"gh", b"glpat-", b"xox", b"wandb_v", b"nvapi-")
_BEGUN = pattern_of(_STARTS + rb"[A-Za-z0-9]{12}")

# A key of 16384 bits, the largest that tools make, has 12,700 bytes of base64.
_LONGEST = 1 << 14
_BEGIN = pattern_of(rb"-----BEGIN (?:[A-Z0-9]+ ){0,3}PRIVATE KEY(?: BLOCK)?-----")
_END = pattern_of(rb"-----END (?:[A-Z0-9]+ ){0,3}PRIVATE KEY(?: BLOCK)?-----")
# What launchers put before a line: srun --label, torchrun --tee.
_LABEL = rb"(?:\[?\w{1,16}\]?: ?)?"
# Before the lines of an encrypted block stand headers (RFC 1421), and a blank line.
_HEADER = pattern_of(rb"[ \t]*" + _LABEL + rb"(?:[A-Za-z-]{3,20}: [^\r\n]{0,80})?[ \t]*\r?")
_LINE = pattern_of(rb"[ \t]*" + _LABEL + rb"(?P<body>[A-Za-z0-9+/]{1,76}={0,2})[ \t]*\r?")
_WIDTHS = (64, 70, 76)
_BODY = pattern_of(rb"[A-Za-z0-9+/]{32}")
# A random line of a key has at least this many different characters, and all kinds.
_DIFFERENT = 20
# A line of a key has far more letters, + and / than this, digits left out.
KEY_RUN = 40

# The kinds of characters: digits, small letters, capital letters, and others.
_KINDS = bytes(
    0 if chr(c) in "0123456789" else 1 if 97 <= c <= 122 else 2 if 65 <= c <= 90 else 3
    for c in range(256)
)
_OTHER = 3


def begins_token(text: str) -> bool:
    """Return whether a token begins in a text, also one that is too short to be whole.

    Stricter than TOKEN: for what is given to others, such as a report.

    >>> begins_token("hf_sesamesesame"), begins_token("hf_transfer")
    (True, False)
    """
    return _BEGUN.search(text.encode("utf-8", "surrogateescape")) is not None


def looks_random(value: bytes, *, shortest_hex: int = 32) -> bool:
    """Return whether a word looks random: letters and digits alternate all the time.

    >>> looks_random(b"0123456789abcdef0123456789abcdef"), looks_random(b"eval_step_10000_avg")
    (True, False)
    >>> looks_random(b"aB3dE5gH7jK9mN1pQ3"), looks_random(b"DistributedDataParallel")
    (True, False)
    """
    if len(set(value)) < 8:
        return False
    if len(value) >= shortest_hex and re.fullmatch(rb"[0-9a-f]+|[0-9A-F]+", value):
        return True
    kinds = value.translate(_KINDS)
    changes = sum(a != b and _OTHER not in (a, b) for a, b in pairwise(kinds))
    return len(value) >= 16 and changes * 3 >= len(value)


def private_keys_in(text: bytes) -> Iterator[tuple[int, int]]:
    r"""Give begin and end of what stands between BEGIN and END; one of them may be missing.

    >>> body = b"MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQC7VJTUt9Us8cKj"
    >>> list(private_keys_in(b"-----BEGIN PRIVATE KEY-----\n" + body + b"\nxyz=\nnext\n"))
    [(28, 97)]
    >>> list(private_keys_in(b"x y\n" + body + b"\nxyz=\n-----END RSA PRIVATE KEY-----\n"))
    [(4, 73)]
    """
    for begin in _BEGIN.finditer(text):
        end = _END.search(text, begin.end(), begin.end() + _LONGEST)
        if end is not None and _BODY.search(text, begin.end(), end.start()):
            between = text[begin.end() : end.start()]
            yield end.start() - len(between.lstrip(b"\r\n")), begin.end() + len(between.rstrip())
        elif end is None:
            yield from _after_begin(text, begin.end())
    for end in _END.finditer(text):
        yield from _before_end(text, end.start())


def open_private_key(text: bytes) -> bytes:
    r"""Return the text from the BEGIN of a key whose END is still to come; b"" for none.

    >>> open_private_key(b"x\n-----BEGIN PRIVATE KEY-----\n")
    b'-----BEGIN PRIVATE KEY-----\n'
    >>> open_private_key(b"-----BEGIN PRIVATE KEY-----\nstep 1\n")
    b''
    """
    low = text.rfind(b"-----BEGIN ", max(0, len(text) - _LONGEST))
    begin = _BEGIN.match(text, low) if low >= 0 else None
    if begin is None or _END.search(text, begin.end()):
        return b""
    inside = [stop for _, stop in _after_begin(text, begin.end())]
    rest = text[max([begin.end(), *inside]) :]
    return text[low:] if not rest.strip() else b""


def is_private_key_line(line: bytes) -> bool:
    """Return whether a whole line looks like one inside a key: long and random."""
    found = _LINE.fullmatch(line)
    if found is None or len(found["body"]) not in _WIDTHS:
        return False
    kinds = set(found["body"].translate(_KINDS)) - {_OTHER}
    return len(set(found["body"])) >= _DIFFERENT and len(kinds) == 3


def _after_begin(text: bytes, at: int) -> Iterator[tuple[int, int]]:
    """Give what follows a BEGIN without END: the key's lines, or the rest of one line in JSON."""
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
    """Give the lines before an END whose BEGIN may be cut off; the last one may be short."""
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
