"""A model of a terminal window, with the control sequences that hpcrun uses."""

from __future__ import annotations

import re

_COMMAND = re.compile(r"\x1b\[(\??)([0-9;]*)([A-Za-z])")
# Ctrl-C may interrupt a sequence; a terminal discards it when the next one begins.
_BROKEN_OFF = re.compile(r"\x1b(?:\[[?0-9;]*)?(?=\x1b)")
_BEGUN = re.compile(r"(?:\x1b(?:\[[?0-9;]*)?)?\Z")


class Window:
    """Processes the output of a program; an unknown control sequence is an error."""

    def __init__(self, width: int, height: int) -> None:
        self.width, self.height = width, height
        self.screens = {"usual": [""] * height, "alternate": [""] * height}
        self.shown = "usual"
        self.modes: set[str] = set()
        self.row = self.column = 0
        self.saved = (0, 0)
        # An incomplete control sequence.
        self.rest = ""

    @property
    def rows(self) -> list[str]:
        return [row.rstrip() for row in self.screens[self.shown]]

    @property
    def text(self) -> str:
        return "\n".join(self.rows)

    def write(self, text: str) -> None:
        text = self.rest + text
        begun = _BEGUN.search(text)
        assert begun is not None
        text, self.rest = _BROKEN_OFF.sub("", text[: begun.start()]), begun[0]
        at = 0
        while at < len(text):
            command = _COMMAND.match(text, at)
            if command is not None:
                self._obey(*command.groups())
                at = command.end()
                continue
            self._put(text[at])
            at += 1

    def _put(self, char: str) -> None:
        rows = self.screens[self.shown]
        if char == "\r":
            self.column = 0
        elif char == "\n":
            self.row += 1
            if self.row == self.height:
                assert self.shown == "usual", "the picture scrolls"
                del rows[0]
                rows.append("")
                self.row -= 1
        else:
            assert char.isprintable(), repr(char)
            if self.shown == "usual" and self.column == self.width:
                self._put("\r")
                self._put("\n")
                rows = self.screens[self.shown]
            assert self.column < self.width, f"wider than the window: {rows[self.row]}{char}"
            row = rows[self.row].ljust(self.column)
            rows[self.row] = row[: self.column] + char + row[self.column + 1 :]
            self.column += 1

    def _obey(self, private: str, numbers: str, letter: str) -> None:
        rows = self.screens[self.shown]
        if private and letter in "hl":
            self.modes = self.modes | {numbers} if letter == "h" else self.modes - {numbers}
            if numbers == "1049" and letter == "h":
                self.shown, self.saved = "alternate", (self.row, self.column)
                self.screens["alternate"] = [""] * self.height
            elif numbers == "1049":
                self.shown, (self.row, self.column) = "usual", self.saved
        elif letter == "H" and not numbers:
            self.row = self.column = 0
        elif letter == "K" and not numbers:
            assert self.column < self.width, "would take the last character"
            rows[self.row] = rows[self.row][: self.column]
        elif letter == "J" and not numbers:
            rows[self.row] = rows[self.row][: self.column]
            rows[self.row + 1 :] = [""] * (self.height - self.row - 1)
        else:
            assert letter == "m", (private, numbers, letter)
