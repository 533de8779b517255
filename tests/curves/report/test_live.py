"""The live view: in-place drawing, and a restored terminal afterwards."""

from __future__ import annotations

import io
import os
import pty
import signal
import termios
from collections.abc import Iterator

import pytest

from hpcrun.curves.report.live import Screen
from tests.curves.report.window import Window


def test_frame_replaces_the_previous_frame() -> None:
    stream, window = io.StringIO(), Window(20, 5)
    window.write("$ hpcrun\r\n")
    with Screen(stream, None) as screen:
        screen.draw(["first", "a long row of it", "third"])
        screen.draw(["second", "short"])
        window.write(stream.getvalue())
        assert window.rows == ["second", "short", "", "", ""]
        assert window.shown == "alternate"
    window.write(stream.getvalue()[-len("\x1b[?25h\x1b[?1049l") :])
    assert window.text.startswith("$ hpcrun\n\n")


def test_each_frame_is_one_write() -> None:
    """The screen is overwritten without clearing it first, to avoid flicker."""
    stream = io.StringIO()
    with Screen(stream, None) as screen:
        stream.truncate(0)
        stream.seek(0)
        screen.draw(["a", "b"])
        sent = stream.getvalue()
        assert sent.startswith("\x1b[?2026h\x1b[H") and sent.endswith("\x1b[J\x1b[?2026l")
        assert "\x1b[2J" not in sent


@pytest.mark.parametrize("error", [None, KeyboardInterrupt, RuntimeError])
def test_terminal_is_restored_at_every_exit(error: type[BaseException] | None) -> None:
    numbers = (signal.SIGWINCH, signal.SIGTSTP, signal.SIGTERM, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]
    stream, window = io.StringIO(), Window(20, 5)
    try:
        with Screen(stream, None) as screen:
            screen.draw(["a"])
            if error is not None:
                raise error
    except BaseException as raised:
        assert type(raised) is error
    window.write(stream.getvalue())
    assert window.shown == "usual"
    assert window.modes == {"25"}  # the cursor is shown
    assert [signal.getsignal(number) for number in numbers] == before


@pytest.fixture
def keyboard() -> Iterator[int]:
    ours, theirs = pty.openpty()
    yield theirs
    os.close(ours)
    os.close(theirs)


def test_typed_keys_are_not_echoed(keyboard: int) -> None:
    def echoes() -> bool:
        return bool(termios.tcgetattr(keyboard)[3] & termios.ECHO)

    assert echoes()
    with Screen(io.StringIO(), keyboard):
        assert not echoes()
    assert echoes()


def test_resizing_requests_a_new_frame() -> None:
    with Screen(io.StringIO(), None) as screen:
        assert screen.is_stale
        screen.draw(["a"])
        assert not screen.is_stale
        os.kill(os.getpid(), signal.SIGWINCH)
        assert screen.is_stale


def test_sigterm_ends_the_live_view() -> None:
    stream = io.StringIO()
    with pytest.raises(SystemExit) as end, Screen(stream, None):
        os.kill(os.getpid(), signal.SIGTERM)
    assert end.value.code == 128 + signal.SIGTERM
    assert stream.getvalue().endswith("\x1b[?1049l")
