"""Patterns of secrets: known tokens, private keys, and values after names such as API_KEY.

The formats of tokens are those that their issuers document (GitHub's "About authentication",
Slack's "Token types", Google's API keys, AWS's "IAM identifiers", RFC 7519 for JWT) and those that
secret scanners use. A private key is a block of lines, of which a reader may see only a part:
base64 between BEGIN and END (RFC 7468, PEM), in lines of 64 characters, 70 for OpenSSH, or 76 for
older tools (RFC 2045). In JSON, as in a service account's file, the whole block is one line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise

from hpcrun.patterns import pattern_of

TOKEN = pattern_of(
    rb"""
    (?<![A-Za-z0-9_])
    (?: hf_[A-Za-z0-9]{20,}                                             # Hugging Face
      | sk-(?=[a-zA-Z_-]{0,99}[0-9])(?=[a-z0-9_-]{0,99}[A-Z])[A-Za-z0-9_-]{20,}  # OpenAI, Anthropic
      | gh[opsur]_[A-Za-z0-9]{20,} | github_pat_[A-Za-z0-9_]{20,}       # GitHub
      | glpat-[A-Za-z0-9_.-]{15,}                                       # GitLab
      | A(?:KIA|SIA)[A-Z0-9]{16}(?![A-Za-z0-9])                         # AWS
      | AIza[A-Za-z0-9_-]{35}                                           # Google
      | xox[a-z]-(?:[A-Za-z0-9]{1,80}-){0,6}[A-Za-z0-9]{12,}(?:-[A-Za-z0-9]{12,})*     # Slack
      | eyJ[A-Za-z0-9_-]{6,999}\.eyJ[A-Za-z0-9_-]{6,}\.[A-Za-z0-9_-]+   # a JSON Web Token
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
# The beginnings of tokens, without digits.
START = pattern_of(_STARTS)
# The length of the alphanumeric run that every token has; blocks are searched for such runs.
TOKEN_RUN = 12
# The beginnings of tokens that may consist of lower-case letters and digits.
LOW_STARTS = (b"hf_", b"gh", b"glpat-", b"xox", b"wandb_v", b"nvapi-")
_TOKEN_BEGINNING = pattern_of(_STARTS + rb"[A-Za-z0-9]{12}")

# A key of 16384 bits, the largest that tools generate, has 12,700 bytes of base64.
_MAX_KEY_BYTES = 1 << 14
_BEGIN = pattern_of(rb"-----BEGIN (?:[A-Z0-9]+ ){0,3}PRIVATE KEY(?: BLOCK)?-----")
_END = pattern_of(rb"-----END (?:[A-Z0-9]+ ){0,3}PRIVATE KEY(?: BLOCK)?-----")
# Prefixes that launchers add to lines: srun --label, torchrun --tee.
_LABEL = rb"(?:\[?\w{1,16}\]?: ?)?"
_LINE = pattern_of(rb"[ \t]*" + _LABEL + rb"(?P<body>[A-Za-z0-9+/]{1,76}={0,2})[ \t]*\r?")
_WIDTHS = (64, 70, 76)
# An encrypted block begins with headers (RFC 1421) and a blank line. The last line of a block may
# be short.
_START, _STOP = rb"[ \t]*" + _LABEL, rb"[ \t]*\r?(?:\n|\Z)"
_FULL = rb"(?:[A-Za-z0-9+/=]{64}|[A-Za-z0-9+/=]{70}|[A-Za-z0-9+/=]{76})"
_LINES = pattern_of(
    rb"(?:" + _START + rb"(?:[A-Za-z-]{3,20}: [^\r\n]{0,80})?" + _STOP + rb")*"
    rb"(?:(?:" + _START + _FULL + _STOP + rb")+"
    rb"(?:" + _START + rb"[A-Za-z0-9+/]{1,76}={0,2}" + _STOP + rb")?)?"
)
_BODY = pattern_of(rb"[A-Za-z0-9+/]{32}")
# A line of a key has at least this many different characters, and all kinds.
_MIN_DISTINCT = 20
# A line of a key has far more letters, + and / than this, not counting digits.
KEY_RUN = 40

# The kinds of characters: digits, lower-case letters, upper-case letters, and others.
_KINDS = bytes(
    0 if chr(c) in "0123456789" else 1 if 97 <= c <= 122 else 2 if 65 <= c <= 90 else 3
    for c in range(256)
)
_OTHER = 3


def begins_token(text: str) -> bool:
    """Return True if a text contains the beginning of a token, even one that is cut off.

    This matches more than TOKEN, for text that is passed on to other people, such as a report.

    >>> begins_token("hf_sesamesesame"), begins_token("hf_transfer")
    (True, False)
    """
    return _TOKEN_BEGINNING.search(text.encode("utf-8", "surrogateescape")) is not None


def looks_random(value: bytes, *, shortest_hex: int = 32) -> bool:
    """Return True if a word looks random because the kind of its characters changes often.

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


def find_private_keys(text: bytes) -> Iterator[tuple[int, int]]:
    r"""Yield the spans between BEGIN and END lines, one of which may be missing.

    >>> body = b"MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQC7VJTUt9Us8cKj"
    >>> list(find_private_keys(b"-----BEGIN PRIVATE KEY-----\n" + body + b"\nxyz=\nnext\n"))
    [(28, 97)]
    >>> list(find_private_keys(b"x y\n" + body + b"\nxyz=\n-----END RSA PRIVATE KEY-----\n"))
    [(4, 73)]
    """
    for begin in _BEGIN.finditer(text):
        end = _END.search(text, begin.end(), begin.end() + _MAX_KEY_BYTES)
        if end is not None and _BODY.search(text, begin.end(), end.start()):
            between = text[begin.end() : end.start()]
            yield end.start() - len(between.lstrip(b"\r\n")), begin.end() + len(between.rstrip())
        elif end is None:
            yield from _find_after_begin(text, begin.end())
    last = 0
    for end in _END.finditer(text):
        if not last or text.find(b"\n", last, end.start()) >= 0:  # the first END of its line
            yield from _find_before_end(text, end.start())
        last = end.end()


def find_open_private_key(text: bytes) -> bytes:
    r"""Return the text from the BEGIN of a key without END; b"" if there is none.

    >>> find_open_private_key(b"x\n-----BEGIN PRIVATE KEY-----\n")
    b'-----BEGIN PRIVATE KEY-----\n'
    >>> find_open_private_key(b"-----BEGIN PRIVATE KEY-----\nstep 1\n")
    b''
    """
    low = text.rfind(b"-----BEGIN ", max(0, len(text) - _MAX_KEY_BYTES))
    begin = _BEGIN.match(text, low) if low >= 0 else None
    if begin is None or _END.search(text, begin.end()):
        return b""
    inside = [stop for _, stop in _find_after_begin(text, begin.end())]
    rest = text[max([begin.end(), *inside]) :]
    return text[low:] if not rest.strip() else b""


def is_private_key_line(line: bytes) -> bool:
    """Return True if a whole line looks like part of a key: long and random."""
    found = _LINE.fullmatch(line)
    if found is None or len(found["body"]) not in _WIDTHS:
        return False
    kinds = set(found["body"].translate(_KINDS)) - {_OTHER}
    return len(set(found["body"])) >= _MIN_DISTINCT and len(kinds) == 3


def _find_after_begin(text: bytes, at: int) -> Iterator[tuple[int, int]]:
    """Yield the span after a BEGIN without END: the key's lines, or the rest of a JSON line."""
    end = text.find(b"\n", at, at + _MAX_KEY_BYTES)
    end = min(len(text), at + _MAX_KEY_BYTES) if end < 0 else end
    if text[at:end].strip():
        if text.startswith((b"\\n", b"\\r", b"\\\\n"), at):
            yield at, end
        return
    first = min(end + 1, len(text))
    lines = _LINES.match(text, first)
    if lines is not None and lines.end() > first:
        yield first, lines.end() - lines[0].endswith(b"\n")


def _find_before_end(text: bytes, at: int) -> Iterator[tuple[int, int]]:
    """Yield the span of the lines before an END whose BEGIN may be cut off."""
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


# ---- Values after names --------------------------------------------------------------------------


# Endings of the names of secrets.
_WORD = rb"(?:key|token|secret|passw(?:or)?d|passphrase|auth|credentials?)"
# Words that precede secrets, in lower case, each with the strings of which a block must contain
# one, after blanks and quotes are removed: many logs have "tokens=4096" in every line.
ROOTS: dict[bytes, tuple[bytes, ...]] = {
    b"key": (b"key=", b"key:", b"keyis", b"keywas"),
    b"token": (b"token=", b"token:", b"tokenis", b"tokenwas"),
    b"secret": (b"secret",),
    b"pass": (b"passw", b"passphrase"),
    b"auth": (b"auth=", b"auth:"),
    b"credential": (b"credential=", b"credential:", b"credentials=", b"credentials:"),
    b"bearer": (b"bearer",),
    b"authorization": (b"authorization:", b"authorization="),
    b"login ": (b"login",),
    b"://": (b"@",),
    b"signature": (b"signature=", b"signature:"),
    b"sig": (b"sig=",),
}
OPTION = b" --"

# The number of bytes after a name in which a secret must begin. Without the limit, a line of many
# names without blanks would be read once for each name.
_SEARCH_LIMIT = 512

# The text between a name and its value, as in os.environ["NAME"] = "value". Placeholders, variables
# and masks are not values.
_SEPARATOR = (
    rb"""\\?["']?\]?(?:[ \t]{0,3}(?::|=>)[ \t]{0,3}|=|[ \t]{1,3}=[ \t]{1,3})"""
    rb"""(?:b?\\?["'])?(?![<\[({$*\\]|os\.(?:environ|getenv))"""
)
_VALUE = rb"""(?P<value>[^\s"',;)}\]&|\\\x00-\x20]+)"""
_ASSIGNMENT = pattern_of(rb"(?P<word>" + _WORD + rb")" + _SEPARATOR + _VALUE, re.IGNORECASE)
_OPTION = pattern_of(
    rb"(?P<word>" + _WORD + rb")[ \t]+[\"']?(?!--?[a-z])(?P<value>[^\s\"',;)}\]<\[({$*]{8,})", re.I
)
# "HF_TOKEN is ...", as programs print it.
_STATEMENT = pattern_of(
    rb"(?P<word>" + _WORD + rb")[\"'`]?[ \t]+(?:is|was)(?:[ \t]+set[ \t]+to)?:?[ \t]+[\"'`]?"
    rb"(?P<value>[^\s\"'`;,()}\]<\[{$*]{6,})",
    re.IGNORECASE,
)

# Presigned URLs, which grant access by themselves: AWS Signature Version 2 and 4, CloudFront,
# Google Cloud Storage V4, Azure shared access signatures; also as headers and in Python or JSON.
_IN_ADDRESS = rb"(?:(?<=[?&])|(?<=&amp;)|(?<=u0026))"
_CLOUD = rb"(?:(?<=x-amz-)|(?<=x-goog-))"
_PARAMETER = rb"""["']?[ \t]{0,2}[:=][ \t]{0,2}["']?(?P<value>[A-Za-z0-9%+/_=~@.-]{16,})"""
# Patterns of secrets after words that are not names, by root.
_OTHER_PATTERNS = {
    b"bearer": pattern_of(
        rb"""bearer(?:[ \t]+|["']?[ \t]?[:=][ \t]?["']?)(?P<value>[A-Za-z0-9._~+/=-]{12,})""", re.I
    ),
    b"authorization": pattern_of(
        rb"""authorization["']?[ \t]*[:=][ \t]*b?["']?(?:basic|token|digest)[ \t]+"""
        rb"""(?P<value>[^\s"',]{4,})""",
        re.IGNORECASE,
    ),
    b"login ": pattern_of(
        rb"login(?:[ ]--[a-z-]+)*[ ](?:\S+[ ]password[ ])?(?P<value>[A-Za-z0-9_]{32,}(?![\w/]))",
        re.IGNORECASE,
    ),
    b"://": pattern_of(rb"""://[^\s/:@'"<>?\#]*:(?P<value>[^\s/@'"<>\x00-\x20]{1,200})@[^\s@]"""),
    b"signature": pattern_of(
        rb"(?:"
        + _IN_ADDRESS
        + rb"|"
        + _CLOUD
        + rb")signature"
        + _PARAMETER
        + rb"|(?<=[ ,])signature=(?P<digest>[0-9a-f]{64})",
        re.I,
    ),
    b"sig": pattern_of(_IN_ADDRESS + rb"sig" + _PARAMETER, re.I),
    b"credential": pattern_of(_CLOUD + rb"credential" + _PARAMETER, re.I),
}

_NAME_CHARACTERS = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-")
# For an upper-case name, which is a variable's, one of these endings is sufficient.
_VARIABLE = pattern_of(
    rb"(?:.*_)?AUTH|.*(?:KEY|TOKEN|SECRET|PASSW(?:OR)?D|PASSPHRASE|CREDENTIALS?)"
)
# Lower-case names are frequent in training logs; only these unambiguous ones count.
_UNAMBIGUOUS_NAME = pattern_of(
    rb"(?:.*[a-z0-9_])??(?:secret|password|passwd|passphrase|credentials?|bearer|gh_token"
    rb"|(?:access|account|api|auth|bearer|github|hf|hub|private|refresh|secret|security|wandb)"
    rb"_?(?:key|token))"
)
# MONKEY ends in KEY by chance; in these names KEY is a separate word.
_SEPARATE_KEY = pattern_of(
    rb"(?:.*[^A-Za-z])?(?:API|ACCESS|ACCOUNT|APP|AUTH|CLIENT|DEPLOY|ENCRYPTION|LICENSE|MASTER"
    rb"|PRIVATE|SECRET|SERVICE|SHARED|SIGNING|SSH|STORAGE|SUBSCRIPTION|USER)?KEY",
    re.IGNORECASE,
)
# Keys of data structures, and tokens of language models.
_HARMLESS_NAME = pattern_of(
    rb"(?:.*_)?(?:(?:CACHE|CAPTION|DATA|FOREIGN|GROUP|IMAGE|INPUT|LABEL|METRIC|MONITOR|OUTPUT"
    rb"|PARTITION|PRIMARY|PUBLIC|SORT|TARGET|TEXT)_KEY"
    rb"|(?:BOS|CLS|EOS|EOT|IMAGE|MASK|PAD|SEP|STOP|UNK)_TOKEN)"
)
_PLAIN_WORD = pattern_of(
    rb"(?:none|null|nil|true|false|yes|no|on|off|n/?a|unset|not|set|empty|required|missing"
    rb"|invalid|str|string|int|bool|bytes|optional\S*|\w*(?:error|exception)|x+|\.+"
    rb"|dummy|disabled|enabled|default|placeholder|not[-_]needed"
    rb"|-?[0-9]{1,12}(?:\.[0-9]*)?%?)\.?",
    re.IGNORECASE,
)
_PATH = pattern_of(rb"(?:~|\.{1,2})?(?:/[\w.@-]+){2,}/?|[A-Za-z]:\\.*")


def is_secret_name(name: str) -> bool:
    """Return True if the name of a variable, option or key is that of a secret.

    >>> [is_secret_name(name) for name in ("HF_TOKEN", "--wandb-key", "apiKey", "credentials")]
    [True, True, True, True]
    >>> [is_secret_name(name) for name in ("pad_token", "SORT_KEY", "MONKEY", "MAX_TOKENS")]
    [False, False, False, False]
    """
    return _is_secret_name(name.encode("utf-8", "surrogateescape"))


def _is_secret_name(name: bytes) -> bool:
    word = name.replace(b"-", b"_").strip(b"_")
    if _is_key_by_chance(word):
        return False
    if word.isupper() and _VARIABLE.fullmatch(word):
        return _HARMLESS_NAME.fullmatch(word) is None
    return _UNAMBIGUOUS_NAME.fullmatch(word.lower()) is not None


def find_secret_after(text: bytes, root: bytes, at: int, known: int = 0) -> tuple[int, int] | None:
    """Return the span of the secret after the word of ROOTS at ``at``, or None.

    ``known`` is the end of the previous secret; a secret inside it may be returned in part.

    >>> find_secret_after(b"MY_API_KEY=abc123", b"key", 7)
    (11, 17)
    >>> [find_secret_after(b"eos_token=</s> HF_TOKEN=None", b"token", at) for at in (4, 18)]
    [None, None]
    """
    limit = at + _SEARCH_LIMIT
    other = _OTHER_PATTERNS[root].match(text, at, limit) if root in _OTHER_PATTERNS else None
    if other is not None:
        return (
            None if _is_plain(other[other.lastgroup or 0]) else _complete_span(other, limit, known)
        )
    for pattern, is_secret in (
        (_ASSIGNMENT, _is_secret),
        (_STATEMENT, _is_secret_statement),
        (_OPTION, _is_secret_option),
    ):
        found = pattern.match(text, at, limit)
        if found is not None:
            start = at
            while start > 0 and at - start < 64 and text[start - 1] in _NAME_CHARACTERS:
                start -= 1
            name = text[start : found.end("word")]
            return _complete_span(found, limit, known) if is_secret(name, found["value"]) else None
    return None


def _complete_span(found: re.Match[bytes], limit: int, known: int) -> tuple[int, int]:
    """Return the span of a value, extended beyond the search limit if it continues there."""
    if found.end() == limit > known:
        found = found.re.match(found.string, found.start()) or found
    return found.span(found.lastgroup or 0)


def _is_secret(name: bytes, value: bytes) -> bool:
    is_path = _PATH.fullmatch(value) is not None
    if _is_plain(value) or _is_key_by_chance(name):
        return False
    if not _is_secret_name(name):
        return len(value) >= 20 and not is_path and looks_random(value)
    if b"PASS" in name.upper():
        return True
    if re.search(rb"auth$|credentials?$", name, re.IGNORECASE) and _is_prose(value):
        return False  # as in "credentials: default"
    # The path of a key file is not secret.
    return len(value) >= 4 and (not is_path or looks_random(value))


def _is_key_by_chance(word: bytes) -> bool:
    return word.upper().endswith(b"KEY") and _SEPARATE_KEY.fullmatch(word) is None


def _is_secret_statement(name: bytes, value: bytes) -> bool:
    value = value.rstrip(b".:!")
    return not _is_prose(value) and _is_secret(name, value)


def _is_secret_option(name: bytes, value: bytes) -> bool:
    """Return True if an option's value is secret; --token needs less evidence than --new_token."""
    if not name.startswith(b"--") or _is_plain(value):
        return False
    is_bare = re.fullmatch(_WORD, name.strip(b"-"), re.IGNORECASE) is not None
    return is_bare or _is_secret(name, value)


def _is_plain(value: bytes) -> bool:
    return _PLAIN_WORD.fullmatch(value) is not None or not value.strip(b"*.")


def _is_prose(value: bytes) -> bool:
    """Return True if a value may be a word of a sentence: short and without digits."""
    return len(value) < 24 and re.search(rb"[0-9]", value) is None


def compile_names(names: Sequence[str]) -> re.Pattern[bytes] | None:
    """Compile the pattern of values after exactly these names; None without names."""
    words = [re.escape(name.encode("utf-8", "surrogateescape")) for name in names if name]
    if not words:
        return None
    return re.compile(rb"(?<![A-Za-z0-9_])(?:" + b"|".join(words) + rb")" + _SEPARATOR + _VALUE)
