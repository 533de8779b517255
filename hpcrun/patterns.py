"""Regular expressions compiled when they are first used; a limit for a search that takes for ever.

There are a hundred for the lines of logs alone, of which one log needs a few: to compile them all
takes half as long as a listing of runs may take.
"""

from __future__ import annotations

import contextlib
import re
import signal
from collections.abc import Iterator
from typing import Any, AnyStr, cast

# A host as in `ssh HOST`: [ssh://][USER@]HOST[:PORT]. As in OpenSSH (valid_hostname and valid_ruser
# in ssh.c) neither part begins with a dash or has characters of a shell: ProxyCommand and Match
# exec pass them to one.
_OF_SHELLS = r"\s\x00-\x1f\x7f'`\"$;&<>|(){}"
SSH_HOST = (
    rf"^(ssh://)?([^-@{_OF_SHELLS}]([^@{_OF_SHELLS}]*[^@\\{_OF_SHELLS}])?@)?"
    rf"[^-@/\\{_OF_SHELLS}][^@/\\{_OF_SHELLS}]*(?!\n)$"
)


class _Pattern:
    """Stands for a pattern; what is used of it once becomes its own."""

    def __init__(self, text: str | bytes, flags: int) -> None:
        self._text, self._flags = text, flags

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # what copies and pickles asks for is no pattern's
            raise AttributeError(name)
        found = getattr(re.compile(self._text, self._flags), name)
        setattr(self, name, found)
        return found


def pattern_of(text: AnyStr, flags: int = 0) -> re.Pattern[AnyStr]:
    """Make a pattern; what is wrong with it shows when it is first used.

    >>> pattern_of("[0-9]+").search("step 7")[0]
    '7'
    """
    return cast("re.Pattern[AnyStr]", _Pattern(text, flags))


@contextlib.contextmanager
def time_limit(seconds: float, error: Exception) -> Iterator[None]:
    """Raise ``error`` where the block has computed for so long, in seconds of the CPU.

    It ends a search for a pattern that would take years. Only the main thread gets signals: in
    others the block has all the time that it takes.
    """

    def stop(number: int, frame: object) -> None:
        raise error

    try:
        before = signal.signal(signal.SIGVTALRM, stop)
    except ValueError:
        yield
        return
    try:
        signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
