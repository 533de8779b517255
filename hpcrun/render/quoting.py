"""Jinja filters that quote a value for each target grammar."""

from __future__ import annotations

import json
import re

from hpcrun.plan import NODE_REFERENCE
from hpcrun.slurm import quote_directive

_EXPANDED = re.compile(r"(\$\$|\$[A-Za-z_][A-Za-z0-9_]*|\$\{[A-Za-z_][A-Za-z0-9_]*\})")
_PLAIN = re.compile(r"[A-Za-z0-9_@%+=:,./-]+")


def quote_bash(value: str) -> str:
    r"""Quote a word for bash.

    Control characters are written as escapes: sbatch refuses scripts with DOS line ends, and
    readers see escapes. Bytes that are not UTF-8 (surrogates from os.fsdecode) are escaped too.

    >>> print(quote_bash("a-b"), quote_bash("it's $x"), quote_bash(""), quote_bash("a\nb'"))
    a-b 'it'\''s $x' '' $'a\nb\''
    """
    if _PLAIN.fullmatch(value):
        return value
    # A backslash before a single quote looks like an escape to people and to shellcheck.
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


def unquote_bash(word: str) -> str:
    r"""Return the value of a word that quote_bash() wrote.

    >>> [unquote_bash(quote_bash(value)) for value in ("a-b", "it's $x", "", "a\n\\b'", "\udcff")]
    ['a-b', "it's $x", '', "a\n\\b'", '\udcff']
    """
    if not word.startswith("$'"):
        return word.replace("'\\''", "\0").replace("'", "").replace("\0", "'")

    def plain(found: re.Match[str]) -> str:
        text = found[1]
        if not text.isdecimal():
            return {"n": "\n", "t": "\t", "r": "\r"}.get(text, text)
        code = int(text, 8)
        return chr(code if code < 128 else code + 0xDC00)

    return re.sub(r"\\([0-7]{3}|.)", plain, word[2:-1])


def quote_comment(value: str) -> str:
    r"""Convert text to one line for a comment.

    >>> quote_comment("two\nlines")
    'two lines'
    """
    return " ".join(re.sub(r"[\x00-\x1f\x7f\ud800-\udfff]", " ", value).split())


def quote_word(value: str) -> str:
    """Quote a word of the job for bash on a node, which expands values that only a node knows.

    >>> print(quote_word("--data=${HPCRUN_LOCAL_DIR}/a b"), quote_word("$HOME"))
    --data="$HPCRUN_LOCAL_DIR"'/a b' '$HOME'
    """
    parts = NODE_REFERENCE.split(value)
    quoted = [quote_bash(part) if part else "" for part in parts[::2]]
    filled = [f'"${name}"' for name in parts[1::2]]
    words = [word for pair in zip(quoted, [*filled, ""], strict=True) for word in pair]
    return "".join(words) or quote_bash("")


def quote_expanded(value: str) -> str:
    """Quote a path for bash on a node, which expands ``$NAME`` and a leading ``~/``.

    An unset variable ends the script with a message; ``$$`` is a dollar sign.

    >>> print(quote_expanded("$TMPDIR/a b/$$x"), quote_expanded("~/data"))
    "${TMPDIR:?not set on this node}"'/a b/$x' "$HOME"/data
    """
    home = '"$HOME"' if value.startswith("~/") else ""
    quoted = home
    text = ""
    for part in _EXPANDED.split(value[1:] if home else value):
        if not _EXPANDED.fullmatch(part) or part == "$$":
            text += "$" if part == "$$" else part
            continue
        name = part.strip("${}")
        quoted += quote_bash(text) if text else ""
        quoted += f'"${{{name}:?not set on this node}}"'
        text = ""
    return quoted + (quote_bash(text) if text or not quoted else "")


def quote_toml(value: str) -> str:
    """Quote a path as a TOML string in which the container engine expands ``${NAME}``.

    >>> print(quote_toml("~/a b"), quote_toml("$SCRATCH/x/$$y"))
    "${HOME}/a b" "${SCRATCH}/x/$$y"
    """
    whole = re.sub(r"\A~/", "$HOME/", value)
    text = re.sub(r"(\$\$)|\$([A-Za-z_]\w*)", lambda one: one[1] or f"${{{one[2]}}}", whole)
    return json.dumps(text.encode(errors="surrogateescape").decode(errors="replace"))


FILTERS = {
    "toml": quote_toml,
    "bash": quote_bash,
    "word": quote_word,
    "expanded": quote_expanded,
    "sbatch": quote_directive,
    "comment": quote_comment,
}
