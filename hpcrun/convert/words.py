"""Write the words of a parsed command as text for bash."""

from __future__ import annotations

import re
from collections.abc import Sequence

from hpcrun.lint import CLOSE, OPEN, unknown_parts

_PLAIN = re.compile(r"[\w@%+=:,./-]+")


def quote_word(text: str, *, splits: bool = False, in_shell: bool = False) -> str:
    """Return a word for bash, in which unknown variables are expanded again.

    Args:
        splits: The word is not quoted in the script.
        in_shell: It is a word of ``bash -c``, in which ``$NAME`` is a variable.

    >>> from hpcrun.lint.script import mark
    >>> quote_word("a b"), quote_word(f"--x={mark('N')}"), quote_word(mark("N"), splits=True)
    ("'a b'", '"--x=${N}"', '${N}')
    >>> quote_word("~/a b", splits=True)
    "~/'a b'"
    """
    if splits and (home := re.match(r"~[\w.-]*(/|$)", text)):  # quoted, bash would not expand it
        rest = text[home.end() :]
        return home[0] + (quote_word(rest, in_shell=in_shell) if rest else "")
    if OPEN not in text and not (in_shell and "$" in text):
        return text if _PLAIN.fullmatch(text) else "'" + text.replace("'", "'\\''") + "'"
    parts = re.split(f"({OPEN}[^{CLOSE}]*{CLOSE})", text)
    if splits and not in_shell:
        return "".join(
            expand_marks(part) if part.startswith(OPEN) else quote_literal(part) for part in parts
        )
    made = ""
    for part in parts:
        if part.startswith(OPEN):
            (name,) = unknown_parts(part)
            made += f"${{{name}}}" if re.fullmatch(r"\w+", name) else _as_expansion(name)
        else:
            special = r'["`\\]' if in_shell else r'["`\\$]'
            made += re.sub(special, r"\\\g<0>", part)
    if splits and len(parts) == 3 and not parts[0] and not parts[2]:
        return made
    return f'"{made}"'


def quote_literal(text: str) -> str:
    """Return a literal part of an unquoted word, in which patterns and braces have a meaning.

    >>> quote_literal("run*/{a,b} c")
    "run*/{a,b}' 'c"
    """

    def one(found: re.Match[str]) -> str:
        return "'" + found[0].replace("'", "'\\''") + "'"

    return re.sub(r"[^\w@%+=:,./*?\[\]{}!^~-]+", one, text)


def _as_expansion(text: str) -> str:
    """Return the text of an expansion, which marks keep as it is in the script."""
    return text if text[:1] in '$`"' else f"${{{text}}}"


def expand_marks(text: str) -> str:
    """Return a text of ``bash -c`` in which unknown variables are expanded again.

    >>> from hpcrun.lint.script import mark
    >>> expand_marks(f"cd {mark('D')}; python t.py")
    'cd ${D}; python t.py'
    """

    def one(found: re.Match[str]) -> str:
        (name,) = unknown_parts(found[0])
        return f"${{{name}}}" if re.fullmatch(r"\w+", name) else _as_expansion(name)

    return re.sub(f"{OPEN}[^{CLOSE}]*{CLOSE}", one, text)


def used_names(words: Sequence[str], *, in_shell: bool = False) -> set[str]:
    """Return the variables that some words expand.

    >>> from hpcrun.lint.script import mark
    >>> sorted(used_names([mark("A"), mark("${B[0]}"), mark("$(echo $C)")]))
    ['A', 'B', 'C']
    """
    found: set[str] = set()
    for word in words:
        for part in unknown_parts(word):
            if re.fullmatch(r"\w+", part):
                found.add(part)
            found |= set(re.findall(r"\$\{?[!#]?([A-Za-z_]\w*)", part))
            if part.startswith("$(("):
                found |= set(re.findall(r"[A-Za-z_]\w*", part))
        if in_shell:
            found |= set(re.findall(r"\$\{?([A-Za-z_]\w*)", word))
    return found
