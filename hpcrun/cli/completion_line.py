"""What stands on a command line that is being typed, and how an answer is written for the shell."""

from __future__ import annotations

from typing import NamedTuple

# What bash reads in a bare word as something else than itself.
_SPECIAL = frozenset(" \t\"'\\$`&;|<>()[]{}*?!#~^")


class Line(NamedTuple):
    """``words`` after the command, and ``current``, which is being typed; both without quotes.

    ``kept``: so many characters of ``current`` stay, since bash puts its answer behind them;
    ``quote`` is the quote that is open there.
    """

    words: list[str]
    current: str
    kept: int = 0
    quote: str = ""


class Item(NamedTuple):
    """A word that could stand here, and what it means."""

    value: str
    help: str = ""


def read_bash(text: str, breaks: str) -> Line:
    r"""Read a line of bash up to the cursor; ``breaks`` is bash's COMP_WORDBREAKS.

    >>> read_bash("hpcrun submit --set a.b=x\\ y", " =:")
    Line(words=['submit', '--set'], current='a.b=x y', kept=4, quote='')
    >>> read_bash('hpcrun submit "my jo', " =:")
    Line(words=['submit'], current='my jo', kept=0, quote='"')
    """
    words: list[str] = []
    word, quote, kept, is_word, is_escaped = "", "", 0, False, False
    for char in text:
        if is_escaped:
            word += char if quote != '"' or char in '"\\$`' else "\\" + char
            is_escaped = False
        elif char == "\\" and quote != "'":
            is_escaped = is_word = True
        elif quote:
            if char == quote:
                quote = ""
            else:
                word += char
        elif char in "\"'":
            quote, is_word, kept = char, True, len(word)
        elif char in " \t\n":
            if is_word:
                words.append(word)
            word, kept, is_word = "", 0, False
        else:
            word, is_word = word + char, True
            if char in breaks:
                kept = len(word)
    return Line(words[1:], word, kept, quote)


def write_bash(value: str, line: Line, *, is_raw: bool = False) -> str | None:
    r"""Write what takes the place of what bash replaces; None for what cannot stand there.

    ``is_raw``: bash will quote it itself, as it does with names of files.

    >>> write_bash("a.b=x y", Line([], "a.b=", kept=4))
    'x\\ y'
    """
    rest = value[line.kept :]
    if is_raw or (line.quote == "'" and "'" not in rest):
        return rest
    if line.quote == '"':
        return "".join("\\" + char if char in '"\\$`' else char for char in rest)
    if line.quote:
        return None
    return "".join("\\" + char if char in _SPECIAL else char for char in rest)


def write_zsh(item: Item) -> str:
    r"""Write a value and its meaning as _describe reads them.

    >>> write_zsh(Item("a:b", "x"))
    'a\\:b:x'
    """
    value = item.value.replace("\\", "\\\\").replace(":", "\\:")
    return f"{value}:{item.help}" if item.help else value


def is_plain(text: str) -> bool:
    """Tell whether a text can be offered: one line, that commands no terminal."""
    return text.isprintable() and bool(text)
