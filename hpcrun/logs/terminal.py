"""Lets text, colours and progress bars of a log reach a terminal, and no commands to it.

A log can hold whatever a program wrote: sequences that set the title, ask the terminal to answer
on the keyboard's line, clear it or switch its alphabet (xterm's "Control Sequences").
"""

from __future__ import annotations

import re

# C1 in UTF-8, and what turns the direction of writing (U+202A to 202E, 2066 to 2069).
_LATER = rb"\xc2[\x80-\x9f] | \xe2\x80[\xaa-\xae] | \xe2\x81[\xa6-\xa9]"
_CONTROLS = re.compile(rb"[\x00-\x07\x0b\x0c\x0e-\x1f\x7f] | " + _LATER, re.VERBOSE)
_SEQUENCE = re.compile(
    rb"""
      \x1b \[ [0-?]*[ -/]*[@-~]                          # CSI: colours, and the cursor's moves
    | \x1b [\]PX^_] [^\x07\x1b\n]* (?: \x07 | \x1b\\ )?      # OSC, DCS, SOS, PM, APC: a string
    | \x1b [ -/]* [0-~]?                                 # others of two or three characters
    | [\x00-\x07\x0b\x0c\x0e-\x1f\x7f]                   # but backspace, tab, newline, return
    | """
    + _LATER,
    re.VERBOSE,
)
# Colours, and "erase the rest of the line", which progress bars need.
_PASSES = re.compile(rb"\x1b\[[0-9;:]*[mK]")


def for_terminal(data: bytes, *, colours: bool = True) -> bytes:
    r"""Remove the commands to a terminal; what is not UTF-8 becomes the replacement character.

    >>> for_terminal(b"\x1b]0;title\x07a\x1b[31mb\x1b[2J\x1bc 10%\r20%\n")
    b'a\x1b[31mb 10%\r20%\n'
    >>> for_terminal(b"\x1b[31mb\x9b", colours=False).decode()
    'b�'
    """
    try:
        data.decode()
    except UnicodeDecodeError:
        data = data.decode("utf-8", "replace").encode()
    if _CONTROLS.search(data) is None:
        return data

    def one(found: re.Match[bytes]) -> bytes:
        text = found.group()
        return text if colours and _PASSES.fullmatch(text) else b""

    return _SEQUENCE.sub(one, data)
