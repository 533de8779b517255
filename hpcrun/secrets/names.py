"""Names that hint at a secret, and the values that stand after them."""

from __future__ import annotations

import re
from collections.abc import Sequence

from hpcrun.patterns import pattern_of
from hpcrun.secrets.tokens import looks_random

# What the name of a secret ends in.
_WORD = rb"(?:key|token|secret|passw(?:or)?d|passphrase|auth|credentials?)"
# By which values are found, in lower case; and what a block must contain as well, blanks and quotes
# left out: "tokens=4096" stands in every line of many logs.
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

# What stands between a name and its value, as in os.environ["NAME"] = "value" too; then what begins
# no value: a placeholder, a variable, a mask.
_SEPARATOR = (
    rb"""\\?["']?\]?(?:[ \t]{0,3}(?::|=>)[ \t]{0,3}|=|[ \t]{1,3}=[ \t]{1,3})"""
    rb"""(?:b?\\?["'])?(?![<\[({$*\\]|os\.(?:environ|getenv))"""
)
_VALUE = rb"""(?P<value>[^\s"',;)}\]&|\\\x00-\x20]+)"""
_ASSIGNED = pattern_of(rb"(?P<word>" + _WORD + rb")" + _SEPARATOR + _VALUE, re.IGNORECASE)
_OPTION = pattern_of(
    rb"(?P<word>" + _WORD + rb")[ \t]+[\"']?(?!--?[a-z])(?P<value>[^\s\"',;)}\]<\[({$*]{8,})", re.I
)
# "HF_TOKEN is ...", as programs explain themselves; a word of prose has no digits.
_STATED = pattern_of(
    rb"(?P<word>" + _WORD + rb")[\"'`]?[ \t]+(?:is|was)(?:[ \t]+set[ \t]+to)?:?[ \t]+[\"'`]?"
    rb"(?P<value>[^\s\"'`;,()}\]<\[{$*]{6,})",
    re.IGNORECASE,
)

# Addresses that let in who has them: AWS's Signature Version 2 and 4, CloudFront's, Google Cloud
# Storage's V4, Azure's shared access signature; also as a header, and as Python or JSON shows it.
_IN_ADDRESS = rb"(?:(?<=[?&])|(?<=&amp;)|(?<=u0026))"
_CLOUD = rb"(?:(?<=x-amz-)|(?<=x-goog-))"
_PARAMETER = rb"""["']?[ \t]{0,2}[:=][ \t]{0,2}["']?(?P<value>[A-Za-z0-9%+/_=~@.-]{16,})"""
# What stands behind other words than names, by the root that it begins with.
_OTHERS = {
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
        rb"(?:" + _IN_ADDRESS + rb"|" + _CLOUD + rb")signature" + _PARAMETER
        + rb"|(?<=[ ,])signature=(?P<digest>[0-9a-f]{64})", re.I
    ),
    b"sig": pattern_of(_IN_ADDRESS + rb"sig" + _PARAMETER, re.I),
    b"credential": pattern_of(_CLOUD + rb"credential" + _PARAMETER, re.I),
}  # fmt: skip

_IN_NAME = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-")
# A name in capitals is a variable's, and these ends are enough.
_VARIABLE = pattern_of(
    rb"(?:.*_)?AUTH|.*(?:KEY|TOKEN|SECRET|PASSW(?:OR)?D|PASSPHRASE|CREDENTIALS?)"
)
# Names in lower case are everywhere in logs of training: these mean nothing else.
_UNMISTAKABLE = pattern_of(
    rb"(?:.*[a-z0-9_])??(?:secret|password|passwd|passphrase|credentials?|bearer|gh_token"
    rb"|(?:access|account|api|auth|bearer|github|hf|hub|private|refresh|secret|security|wandb)"
    rb"_?(?:key|token))"
)
# MONKEY ends in KEY by chance; in these KEY is a word of its own.
_OWN_KEY = pattern_of(
    rb"(?:.*[^A-Za-z])?(?:API|ACCESS|ACCOUNT|APP|AUTH|CLIENT|DEPLOY|ENCRYPTION|LICENSE|MASTER"
    rb"|PRIVATE|SECRET|SERVICE|SHARED|SIGNING|SSH|STORAGE|SUBSCRIPTION|USER)?KEY",
    re.IGNORECASE,
)
# Keys of data, and tokens of language models.
_HARMLESS = pattern_of(
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
    """Return whether a variable, option or key of this name holds a secret, whatever its value.

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
        return _HARMLESS.fullmatch(word) is None
    return _UNMISTAKABLE.fullmatch(word.lower()) is not None


def value_after(text: bytes, root: bytes, at: int) -> tuple[int, int] | None:
    """Return begin and end of the secret after the word of ROOTS that stands at ``at``, or None.

    >>> value_after(b"MY_API_KEY=abc123", b"key", 7)
    (11, 17)
    >>> [value_after(b"eos_token=</s> HF_TOKEN=None", b"token", at) for at in (4, 18)]
    [None, None]
    """
    other = _OTHERS[root].match(text, at) if root in _OTHERS else None
    if other is not None:
        group = other.lastgroup or 0
        return None if _is_plain(other[group]) else other.span(group)
    for pattern, is_secret in (
        (_ASSIGNED, _is_secret),
        (_STATED, _is_secret_statement),
        (_OPTION, _is_secret_option),
    ):
        found = pattern.match(text, at)
        if found is not None:
            start = at
            while start > 0 and at - start < 64 and text[start - 1] in _IN_NAME:
                start -= 1
            name = text[start : found.end("word")]
            return found.span("value") if is_secret(name, found["value"]) else None
    return None


def _is_secret(name: bytes, value: bytes) -> bool:
    """Judge a value by its name and its form."""
    is_path = _PATH.fullmatch(value) is not None
    if _is_plain(value) or _is_key_by_chance(name):
        return False
    if not _is_secret_name(name):
        return len(value) >= 20 and not is_path and looks_random(value)
    if b"PASS" in name.upper():
        return True
    if re.search(rb"auth$|credentials?$", name, re.IGNORECASE) and _is_prose(value):
        return False  # "credentials: default"
    # The path of a key is no secret.
    return len(value) >= 4 and (not is_path or looks_random(value))


def _is_key_by_chance(word: bytes) -> bool:
    return word.upper().endswith(b"KEY") and _OWN_KEY.fullmatch(word) is None


def _is_secret_statement(name: bytes, value: bytes) -> bool:
    value = value.rstrip(b".:!")
    return not _is_prose(value) and _is_secret(name, value)


def _is_secret_option(name: bytes, value: bytes) -> bool:
    """Judge what follows an option: --token and --hf-token, but --sort-key and --new_token less."""
    if not name.startswith(b"--") or _is_plain(value):
        return False
    is_bare = re.fullmatch(_WORD, name.strip(b"-"), re.IGNORECASE) is not None
    return is_bare or _is_secret(name, value)


def _is_plain(value: bytes) -> bool:
    return _PLAIN_WORD.fullmatch(value) is not None or not value.strip(b"*.")


def _is_prose(value: bytes) -> bool:
    """Return whether a value may be a word of a sentence: it has no digit and is not long."""
    return len(value) < 24 and re.search(rb"[0-9]", value) is None


def pattern_after(names: Sequence[str]) -> re.Pattern[bytes] | None:
    """Make the pattern of values after these very names; None for no names."""
    words = [re.escape(name.encode("utf-8", "surrogateescape")) for name in names if name]
    if not words:
        return None
    return re.compile(rb"(?<![A-Za-z0-9_])(?:" + b"|".join(words) + rb")" + _SEPARATOR + _VALUE)
