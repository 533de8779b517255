"""Regular expressions compiled on first use, and a CPU time limit for pathological searches.

The log parsers alone define about a hundred patterns, of which one log needs only a few. Compiling
all of them takes half as long as listing the runs.
"""

from __future__ import annotations

import contextlib
import re
import signal
from collections.abc import Iterator
from typing import Any, AnyStr, cast

# A host as in `ssh HOST`: [ssh://][USER@]HOST[:PORT]. As in OpenSSH (valid_hostname and valid_ruser
# in ssh.c), neither part may begin with a dash or contain shell metacharacters, because
# ProxyCommand and Match exec pass them to a shell.
_OF_SHELLS = r"\s\x00-\x1f\x7f'`\"$;&<>|(){}"
SSH_HOST = (
    rf"^(ssh://)?([^-@{_OF_SHELLS}]([^@{_OF_SHELLS}]*[^@\\{_OF_SHELLS}])?@)?"
    rf"[^-@/\\{_OF_SHELLS}][^@/\\{_OF_SHELLS}]*(?!\n)$"
)


class _Pattern:
    """A proxy for a pattern that is compiled on first use and caches its methods."""

    def __init__(self, text: str | bytes, flags: int) -> None:
        self._text, self._flags = text, flags

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # copy and pickle probe for special methods
            raise AttributeError(name)
        found = getattr(re.compile(self._text, self._flags), name)
        setattr(self, name, found)
        return found


def pattern_of(text: AnyStr, flags: int = 0) -> re.Pattern[AnyStr]:
    """Create a lazily compiled pattern; an invalid pattern raises an error on first use.

    >>> pattern_of("[0-9]+").search("step 7")[0]
    '7'
    """
    return cast("re.Pattern[AnyStr]", _Pattern(text, flags))


@contextlib.contextmanager
def time_limit(seconds: float, error: Exception) -> Iterator[None]:
    """Raise ``error`` if the block uses more than ``seconds`` of CPU time.

    This stops a pathological pattern search. Only the main thread receives signals; in other
    threads there is no limit.
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
