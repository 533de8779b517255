"""Redraw a terminal window in place, like less and top.

Uses the alternate screen (xterm private mode 1049). To avoid flicker, each frame is sent in a
single write that overwrites the previous rows within a synchronized update (private mode 2026).
"""

from __future__ import annotations

import contextlib
import os
import signal
import termios
from collections.abc import Sequence
from types import FrameType
from typing import Any, TextIO

_ENTER = "\x1b[?1049h\x1b[?25l"
_LEAVE = "\x1b[?25h\x1b[?1049l"


class Screen:
    """Context manager for the alternate screen of a terminal.

    The terminal is restored however the block ends (exception, Ctrl-C, termination signal). Ctrl-Z
    suspends the program on the normal screen, and fg shows the alternate screen again.

    Attributes:
        is_stale: Whether the window was resized or resumed since the last drawing.
    """

    def __init__(self, stream: TextIO, keyboard: int | None) -> None:
        """Create a screen.

        Args:
            stream: The terminal to write to.
            keyboard: File descriptor of the terminal input, whose echo is disabled; or None.
        """
        self.is_stale = True
        self._stream = stream
        self._keyboard = keyboard
        self._modes: list[Any] | None = None
        self._handlers: dict[int, Any] = {}

    def __enter__(self) -> Screen:
        for number, handler in (
            (signal.SIGWINCH, self._on_resize),
            (signal.SIGTSTP, self._on_stop),
            (signal.SIGTERM, end_by_signal),
            (signal.SIGHUP, end_by_signal),
        ):
            self._handlers[number] = signal.signal(number, handler)
        self._show()
        return self

    def __exit__(self, *raised: object) -> None:
        self._hide()
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def draw(self, rows: Sequence[str]) -> None:
        """Draw rows from the top; each must be at least one column narrower than the window."""
        self.is_stale = False
        picture = "".join(f"{row}\x1b[K\r\n" for row in rows[:-1])
        last = f"{rows[-1]}\x1b[K" if rows else ""
        self._write(f"\x1b[?2026h\x1b[H{picture}{last}\x1b[J\x1b[?2026l")

    def _show(self) -> None:
        if self._keyboard is not None:
            with contextlib.suppress(termios.error):
                self._modes = termios.tcgetattr(self._keyboard)
                quiet = [*self._modes]
                quiet[3] &= ~(termios.ECHO | termios.ICANON)
                termios.tcsetattr(self._keyboard, termios.TCSADRAIN, quiet)
        self._write(_ENTER)
        self.is_stale = True

    def _hide(self) -> None:
        with contextlib.suppress(OSError):  # the terminal may have been closed
            self._write(_LEAVE)
        if self._keyboard is not None and self._modes is not None:
            with contextlib.suppress(termios.error):
                # TCSAFLUSH discards pending input, which was not meant for the shell.
                termios.tcsetattr(self._keyboard, termios.TCSAFLUSH, self._modes)

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()

    def _on_resize(self, number: int, frame: FrameType | None) -> None:
        self.is_stale = True

    def _on_stop(self, number: int, frame: FrameType | None) -> None:
        self._hide()
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)
        # Execution continues here after fg.
        signal.signal(signal.SIGTSTP, self._on_stop)
        self._show()


def end_by_signal(number: int, frame: FrameType | None) -> None:
    """Raise SystemExit with the shell's status for a signal, so that cleanup handlers run."""
    raise SystemExit(128 + number)
