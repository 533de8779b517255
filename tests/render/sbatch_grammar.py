"""A Python port of sbatch's grammar for ``#SBATCH`` lines (src/sbatch/opt.c)."""

from __future__ import annotations

_BLANKS = b" \t\n\v\f\r"


class Unbalanced(ValueError):
    """Raised where sbatch would exit, because a quote is open at the end of the line."""


def read_arguments(line: bytes) -> list[bytes]:
    r"""Split the text after ``#SBATCH`` into arguments as sbatch does.

    >>> read_arguments(b'--a="b \\" c" -d e\\ f # g')
    [b'--a=b " c', b'-d', b'e', b'f']
    >>> read_arguments(b"--job-name=run#3")
    [b'--job-name=run']
    """
    found: list[bytes] = []
    rest = line
    while True:
        rest = rest.lstrip(_BLANKS)
        if not rest or rest.startswith(b"#"):
            return found
        argument, rest = _read_one(rest)
        if argument:
            found.append(argument)


def _read_one(text: bytes) -> tuple[bytes, bytes]:
    argument, quote, escaped, at = bytearray(), b"", False, 0
    while at < len(text):
        char = text[at : at + 1]
        # A backslash escapes a # at the start of a word, but not a blank.
        if char == b"\n" or (not quote and (char in _BLANKS or (char == b"#" and not escaped))):
            break
        at += 1
        if escaped:
            argument += char
            escaped = False
        elif char == b"\\":
            escaped = True
        elif quote and char == quote:
            quote = b""
        elif not quote and char in (b'"', b"'"):
            quote = char
        else:
            argument += char
    if quote:
        raise Unbalanced(text.decode("utf-8", "replace"))
    return bytes(argument), text[at:]


def read_script(script: bytes) -> list[tuple[str, str | None]]:
    """Read the options of a script up to the first line that is not a comment, as sbatch does."""
    options: list[tuple[str, str | None]] = []
    for line in script.split(b"\n"):
        if line.startswith(b"#SBATCH"):
            for argument in read_arguments(line.removeprefix(b"#SBATCH")):
                name, equals, value = argument.removeprefix(b"--").decode().partition("=")
                options.append((name, value if equals else None))
        elif line.strip() and not line.startswith(b"#"):
            break
    return options
