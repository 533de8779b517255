"""One filter per target grammar: each word arrives as it was given.

Pure.
"""

from __future__ import annotations

import re

from hpcrun.slurm.sbatch import quote_directive

_PLAIN = re.compile(r"[A-Za-z0-9_@%+=:,./-]+")


def quote_bash(value: str) -> str:
    r"""Quote a word for bash.

    Control characters are spelled out: sbatch refuses scripts with DOS line ends, and a script
    should show what it holds. Bytes that are not UTF-8 (surrogates, as os.fsdecode gives them)
    are spelled out too.

    >>> print(quote_bash("a-b"), quote_bash("it's $x"), quote_bash(""), quote_bash("a\nb'"))
    a-b 'it'\''s $x' '' $'a\nb\''
    """
    if _PLAIN.fullmatch(value):
        return value
    # A backslash before a single quote reads like an escape, to people and to shellcheck.
    if not re.search(r"[\x00-\x1f\x7f\ud800-\udfff]|\\('|\Z)", value):
        return "'" + value.replace("'", "'\\''") + "'"
    return "$'" + "".join(_escape(char) for char in value) + "'"


def _escape(char: str) -> str:
    named = {"\n": "\\n", "\t": "\\t", "\r": "\\r", "'": "\\'", "\\": "\\\\"}
    if char in named:
        return named[char]
    code = ord(char)
    if 0xDC80 <= code <= 0xDCFF:
        return f"\\{code - 0xDC00:03o}"
    return f"\\{code:03o}" if code < 32 or code == 127 else char


def quote_comment(value: str) -> str:
    r"""Make text fit for one comment line.

    >>> quote_comment("two\nlines")
    'two lines'
    """
    return " ".join(re.sub(r"[\x00-\x1f\x7f\ud800-\udfff]", " ", value).split())


FILTERS = {"bash": quote_bash, "sbatch": quote_directive, "comment": quote_comment}
