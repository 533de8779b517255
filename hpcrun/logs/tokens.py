"""What secrets look like in a log: well-known tokens, values of telling names, addresses.

The forms of tokens are their issuers' (GitHub's "About authentication", Slack's "Token types",
Google's API keys, AWS's "IAM identifiers", RFC 7519 for JWT) and as secret scanners know them.
A mask too many hides what somebody looks for: hashes, ids and paths that no telling name stands
before are left alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise

# A token by its own form, wherever it stands.
KNOWN = re.compile(
    rb"""
    (?<![A-Za-z0-9_])
    (?: hf_[A-Za-z0-9]{20,}                                             # Hugging Face
      | sk-(?=[A-Za-z0-9_-]*[0-9])(?=[A-Za-z0-9_-]*[A-Z])[A-Za-z0-9_-]{20,}    # OpenAI, Anthropic
      | gh[opsur]_[A-Za-z0-9]{30,} | github_pat_[A-Za-z0-9_]{22,}       # GitHub
      | glpat-[A-Za-z0-9_.-]{20,}                                       # GitLab
      | A(?:KIA|SIA)[A-Z0-9]{16}(?![A-Za-z0-9])                         # AWS
      | AIza[A-Za-z0-9_-]{35}                                           # Google
      | xox[a-z]-(?:[A-Za-z0-9]+-)*[A-Za-z0-9]{10,}                     # Slack
      | eyJ[A-Za-z0-9_-]{6,}\.eyJ[A-Za-z0-9_-]{6,}\.[A-Za-z0-9_-]+      # a JSON Web Token
      | wandb_v[0-9]_[A-Za-z0-9_]{20,}                                  # Weights & Biases
      | nvapi-[A-Za-z0-9_-]{40,}                                        # NVIDIA
    )
    """,
    re.VERBOSE,
)
# How they begin, digits left out.
SIGNS = re.compile(
    rb"(?<![A-Za-z0-9_])(?:hf_|sk-|gh[opsur]_|github_pat_|glpat-|A(?:KIA|SIA)|AIza|xox|eyJ|wandb_v"
    rb"|nvapi-)"
)
# The shortest run of letters and digits in them, by which blocks are searched.
KNOWN_RUN = 12
# What those begin with that may have small letters and digits alone.
LOW_SIGNS = (b"hf_", b"gh", b"glpat-", b"xox", b"wandb_v", b"nvapi-")

# What stands between a name and its value, as in os.environ["NAME"] = "value" too, and what a
# value begins with that is none: a placeholder, a variable, a mask.
_SEPARATOR = (
    rb"""\\?["']?\]?(?:[ \t]{0,3}(?::|=>)[ \t]{0,3}|=|[ \t]{1,3}=[ \t]{1,3})"""
    rb"""(?:b?\\?["'])?(?![<\[({$*\\]|os\.(?:environ|getenv))"""
)
_VALUE = rb"""(?P<value>[^\s"',;)}\]&|\\\x00-\x20]+)"""
# The words that a secret's name ends in; and what else secrets stand behind.
_NAME = rb"(?:key|token|secret|passw(?:or)?d|passphrase)"
_ASSIGNED = re.compile(rb"(?P<word>" + _NAME + rb")" + _SEPARATOR + _VALUE, re.IGNORECASE)
_OPTION = re.compile(_NAME + rb"[ \t]+[\"']?(?!--?[a-z])(?P<value>[^\s\"',;)}\]<\[({$*]{8,})", re.I)
# "HF_TOKEN is ...", as programs say to explain themselves; a word of prose has no digits.
_STATED = re.compile(
    rb"(?P<word>" + _NAME + rb")[\"'`]?[ \t]+(?:is|was)(?:[ \t]+set[ \t]+to)?:?[ \t]+[\"'`]?"
    rb"(?P<value>[^\s\"'`;,()}\]<\[{$*]{6,})",
    re.IGNORECASE,
)
_LOGIN = re.compile(
    rb"login(?:[ ]--[a-z-]+)*[ ](?:\S+[ ]password[ ])?(?P<value>[A-Za-z0-9_]{32,}(?![\w/]))", re.I
)
_AUTHORIZATION = re.compile(
    rb"""authorization["']?[ \t]*[:=][ \t]*b?["']?(?:basic|token|digest)[ \t]+"""
    rb"""(?P<value>[^\s"',]{4,})""",
    re.IGNORECASE,
)
# Addresses that let in who has them: AWS's Signature Version 2 and 4, CloudFront's, Google Cloud
# Storage's V4, Azure's shared access signature; also as a header, and as Python or JSON shows it.
_IN_ADDRESS = rb"(?:(?<=[?&])|(?<=&amp;)|(?<=u0026))"
_CLOUD = rb"(?:(?<=x-amz-)|(?<=x-goog-))"
_PARAMETER = rb"""["']?[ \t]{0,2}[:=][ \t]{0,2}["']?(?P<value>[A-Za-z0-9%+/_=~@.-]{16,})"""
_SIGNATURE = re.compile(
    rb"(?:" + _IN_ADDRESS + rb"|" + _CLOUD + rb")signature" + _PARAMETER
    + rb"|(?<=[ ,])signature=(?P<digest>[0-9a-f]{64})", re.I
)  # fmt: skip
_SAS = re.compile(_IN_ADDRESS + rb"sig" + _PARAMETER, re.I)
_CREDENTIAL = re.compile(rb"(?:(?<=x-amz)|(?<=x-goog))-credential" + _PARAMETER, re.I)
_BEARER = re.compile(rb"bearer[ \t]+(?P<value>[A-Za-z0-9._~+/=-]{12,})", re.I)
_ADDRESS = re.compile(rb"""://[^\s/:@'"<>?\#]*:(?P<value>[^\s/@'"<>\x00-\x20]{1,200})@[^\s@]""")
# By which they are found, in lower case; and what a block must hold besides, blanks and quotes
# left out: "tokens=4096" stands in every line of many logs.
ROOTS: dict[bytes, tuple[bytes, ...]] = {
    b"key": (b"key=", b"key:", b"keyis", b"keywas"),
    b"token": (b"token=", b"token:", b"tokenis", b"tokenwas"),
    b"secret": (b"secret",),
    b"pass": (b"passw", b"passphrase"),
    b"bearer": (b"bearer",),
    b"authorization": (b"authorization:", b"authorization="),
    b"login ": (b"login",),
    b"://": (b"@",),
    b"signature": (b"signature=", b"signature:"),
    b"sig": (b"sig=",),
    b"-credential": (b"-credential=", b"-credential:"),
}
OPTION = b" --"
# Those that are no part of a name, with the value's place behind them.
_WHOLE = {
    b"bearer": _BEARER,
    b"authorization": _AUTHORIZATION,
    b"login ": _LOGIN,
    b"://": _ADDRESS,
    b"signature": _SIGNATURE,
    b"sig": _SAS,
    b"-credential": _CREDENTIAL,
}

_BEFORE = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-")
# Names in lower case are everywhere in logs of training: these mean nothing else.
_TELLING = re.compile(
    rb"(?:.*[a-z0-9_])??(?:api_?key|access_?key|secret_?key|private_?key|access_?token|auth_?token"
    rb"|refresh_?token|bearer_?token|private_?token|hf_?token|hub_?token|wandb_?key|wandb_?token"
    rb"|github_?token|gh_?token|security_?token|account_?key|secret|password|passwd|passphrase)"
)
# MONKEY ends in KEY by chance; in these KEY is a word of its own.
_OWN_WORD = re.compile(
    rb"(?:.*[^A-Za-z])?(?:API|ACCESS|ACCOUNT|APP|AUTH|CLIENT|DEPLOY|ENCRYPTION|LICENSE|MASTER"
    rb"|PRIVATE|SECRET|SERVICE|SHARED|SIGNING|SSH|STORAGE|SUBSCRIPTION|USER)?KEY",
    re.IGNORECASE,
)
# What such a name says before it: of data, and of the words of a language model.
_HARMLESS = re.compile(
    rb"(?:.*_)?(?:(?:CACHE|CAPTION|DATA|FOREIGN|GROUP|IMAGE|INPUT|LABEL|METRIC|MONITOR|OUTPUT"
    rb"|PARTITION|PRIMARY|PUBLIC|SORT|TARGET|TEXT)_KEY"
    rb"|(?:BOS|CLS|EOS|EOT|IMAGE|MASK|PAD|SEP|STOP|UNK)_TOKEN)"
)
_PLAIN_WORD = re.compile(
    rb"(?:none|null|nil|true|false|yes|no|on|off|n/?a|unset|not|set|empty|required|missing"
    rb"|invalid|str|string|int|bool|bytes|optional\S*|\w*(?:error|exception)|x+|\.+"
    rb"|-?[0-9]{1,12}(?:\.[0-9]*)?%?)\.?",
    re.IGNORECASE,
)
_PATH = re.compile(rb"(?:~|\.{1,2})?(?:/[\w.@-]+){2,}/?|[A-Za-z]:\\.*")


def known_in(text: bytes) -> Iterator[tuple[int, int]]:
    """Give begin and end of all tokens that are known by their form.

    >>> list(known_in(b"git 3f1c hf_abcdefghijABCDEFGHIJ task-hf_x"))
    [(9, 32)]
    """
    for found in KNOWN.finditer(text):
        yield found.span()


def named_in(text: bytes, root: bytes, at: int) -> tuple[int, int] | None:
    """Return begin and end of the value that stands after the word of ROOTS at ``at``, if any.

    >>> named_in(b"MY_API_KEY=abc123", b"key", 7)
    (11, 17)
    >>> [named_in(b"eos_token=</s> HF_TOKEN=None", b"token", at) for at in (4, 18)]
    [None, None]
    """
    if root in _WHOLE:
        found = _WHOLE[root].match(text, at)
        if found is None or _is_plain(found[found.lastgroup or 0]):
            return None
        return found.span(found.lastgroup or 0)
    found = _ASSIGNED.match(text, at)
    if found is None and (stated := _STATED.match(text, at)):
        name = _name(text, at, stated.end("word"))
        return stated.span("value") if _is_stated(name, stated["value"]) else None
    if found is None:
        found = _OPTION.match(text, at)
        name = _name(text, at, at) if found else b""
        is_option = name.startswith(b"--") and name.endswith((b"-", b"_", b"--"))
        return (
            found.span("value") if found and is_option and not _is_plain(found["value"]) else None
        )
    value = found["value"]
    name = _name(text, at, found.end("word"))
    return found.span("value") if _is_secret(name, value) else None


def _name(text: bytes, at: int, end: int) -> bytes:
    """The whole name whose last word begins at ``at``."""
    start = at
    while start > 0 and at - start < 64 and text[start - 1] in _BEFORE:
        start -= 1
    return text[start:end]


def _is_plain(value: bytes) -> bool:
    return _PLAIN_WORD.fullmatch(value) is not None or not value.strip(b"*.")


def _is_secret(name: bytes, value: bytes) -> bool:
    """Judge a value by its name and its looks."""
    if _is_plain(value):
        return False
    word = name.replace(b"-", b"_").strip(b"_")
    if word.upper().endswith(b"KEY") and _OWN_WORD.fullmatch(word) is None:
        return False
    is_telling = word.isupper() and _HARMLESS.fullmatch(word) is None
    if is_telling or _TELLING.fullmatch(word.lower()):
        if b"PASS" in word.upper():
            return True
        # Where a key lies is no secret.
        return len(value) >= 4 and (_PATH.fullmatch(value) is None or looks_drawn(value))
    return len(value) >= 20 and _PATH.fullmatch(value) is None and looks_drawn(value)


def _is_stated(name: bytes, value: bytes) -> bool:
    """Judge a value of which a sentence speaks: one with a digit in it, or longer than words are.

    >>> [_is_stated(b"HF_TOKEN", word) for word in (b"ab12cd34", b"required", b"deprecated.")]
    [True, False, False]
    """
    value = value.rstrip(b".:!")
    is_word = len(value) < 24 and re.search(rb"[0-9]", value) is None
    return not is_word and _is_secret(name, value)


def named_pattern(names: Sequence[str]) -> re.Pattern[bytes] | None:
    """Make the pattern of values after the names themselves; None for no names."""
    words = [re.escape(name.encode("utf-8", "surrogateescape")) for name in names if name]
    if not words:
        return None
    return re.compile(rb"(?<![A-Za-z0-9_])(?:" + b"|".join(words) + rb")" + _SEPARATOR + _VALUE)


def looks_drawn(value: bytes) -> bool:
    """Tell whether a word looks drawn by lot: letters and digits change all the time.

    >>> looks_drawn(b"0123456789abcdef0123456789abcdef"), looks_drawn(b"eval_loss_step_10000_avg")
    (True, False)
    >>> looks_drawn(b"aB3dE5gH7jK9mN1pQ3"), looks_drawn(b"DistributedDataParallel")
    (True, False)
    """
    if len(value) >= 32 and re.fullmatch(rb"(?:[0-9a-f]+|[0-9A-F]+)", value):
        return len(set(value)) >= 8
    drawn = len(value) >= 16 and len(set(value)) >= 8
    return drawn and changes_of_kind(value) * 3 >= len(value)


def changes_of_kind(value: bytes) -> int:
    """Count where a digit, a small and a capital letter follow on one of another kind.

    >>> changes_of_kind(b"aB3_d4")
    3
    """
    kinds = [_kind(char) for char in value]
    return sum(a != b and a < 3 > b for a, b in pairwise(kinds))


def _kind(char: int) -> int:
    if 48 <= char <= 57:
        return 0
    return 1 if 97 <= char <= 122 else 2 if 65 <= char <= 90 else 3
