"""Host lists in Slurm's notation: ``node[01-04,07]`` and ``72(x2),36``.

squeue, SLURM_JOB_NODELIST and slurm.conf contain node lists. Hosts keep the order of ``scontrol
show hostnames``, which is that of the ranks (src/common/hostlist.c).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import product
from math import prod

from hpcrun.errors import InputError
from hpcrun.patterns import pattern_of

# Slurm's limit for one range (MAX_RANGE in src/common/hostlist.c, 20.11 to 26.05), applied here to
# the whole list, so that a range of a billion does not exhaust the memory.
HOST_LIMIT = 65536
_NAME_LIMIT = 253  # characters in a host name, RFC 1035
_DIGITS = 18  # more do not fit into Slurm's 64-bit numbers

# A name with its bracket groups; a separator; a misplaced bracket.
_PIECE = pattern_of(r"((?:[^\s,\[\]]|\[[^\[\]]*\])+)|[\s,]+|([\[\]])")
_HOST = pattern_of(r"[A-Za-z0-9_][A-Za-z0-9._-]*")
_RANGE = pattern_of(r"([0-9]{1,64})(?:-([0-9]{1,64}))?")
_NUMBERED = pattern_of(rf"(.*?)([0-9]{{1,{_DIGITS}}})?", re.DOTALL)
_COUNT = pattern_of(r"([0-9]{1,9})(?:\(x([0-9]{1,9})\))?")


def expand_hosts(text: str) -> list[str]:
    """Return the hosts of a node list, in Slurm's order, including duplicates.

    Padding is that of a range's first number. Of several bracket groups the last one varies fastest
    and the last but one slowest. A suffix may follow a group, as in Slurm since 23.11.

    Raises:
        InputError: Slurm rejects the list, a bracket is not closed (Slurm before 23.02 guessed), a
            name is no valid host name, or there are more than HOST_LIMIT hosts.

    >>> expand_hosts("node[01-03,07],login")
    ['node01', 'node02', 'node03', 'node07', 'login']
    >>> expand_hosts("r[1-2]n[098-100]-ib")
    ['r1n098-ib', 'r1n099-ib', 'r1n100-ib', 'r2n098-ib', 'r2n099-ib', 'r2n100-ib']
    >>> expand_hosts("[8-11]"), expand_hosts("")
    (['8', '9', '10', '11'], [])
    """
    hosts: list[str] = []
    for piece in _PIECE.finditer(text):
        if piece[2]:
            what = "the bracket [ is not closed" if piece[2] == "[" else "a ] without its ["
            raise InputError(
                f"{_short(text)}: {what} (character {piece.start() + 1})",
                fix="write it as node[01-04,07]",
            )
        if piece[1]:
            hosts += _expand_name(piece[1], HOST_LIMIT - len(hosts))
    return hosts


def _expand_name(token: str, limit: int) -> list[str]:
    parts = re.split(r"\[([^\]]*)\]", token)
    texts, groups = parts[::2], parts[1::2]
    check_host("0".join(texts) if groups else token, token)
    ranges = [[_range(text, token) for text in group.split(",")] for group in groups]
    count = prod(sum(last - first + 1 for first, last, _ in group) for group in ranges)
    if count > limit:
        raise InputError(
            f"{_short(token)}: {count:,} hosts; a node list may have {HOST_LIMIT:,} in all",
            fix="is a number in the brackets too long?",
        )
    numbers = [
        [f"{number:0{width}d}" for first, last, width in group for number in range(first, last + 1)]
        for group in ranges
    ]
    if len(groups) < 2:
        return [f"{texts[0]}{number}{texts[1]}" for number in numbers[0]] if groups else [token]
    # Slurm's nesting: the last group is the inner loop; around it go the first, the second ...
    order = [*range(len(groups) - 2, -1, -1), len(groups) - 1]
    hosts = []
    for chosen in product(*(numbers[i] for i in order)):
        by_place = dict(zip(order, chosen, strict=True))
        hosts.append(texts[0] + "".join(by_place[i] + texts[i + 1] for i in range(len(groups))))
    return hosts


def _range(text: str, token: str) -> tuple[int, int, int]:
    """Parse ``7`` or ``01-04``: first number, last number, width."""
    match = _RANGE.fullmatch(text)
    if match is None:
        what = f"{text!r} is neither a number nor a range" if text else "an empty range"
        raise InputError(f"{_short(token)}: {what}", fix="write it as node[01-04,07]")
    first, last = int(match[1]), int(match[2] or match[1])
    if last >= 10**_DIGITS:
        raise InputError(f"{_short(token)}: {text}: a number of more than {_DIGITS} digits")
    if first > last:
        raise InputError(
            f"{_short(token)}: the range {text} runs backwards", fix=f"{match[2]}-{match[1]}"
        )
    return first, last, len(match[1])


def check_host(name: str, token: str = "") -> None:
    """Reject an invalid host name; ``token`` is the text that contains it. Raises InputError.

    >>> check_host("gpu-7.cluster")
    """
    where = _short(token or name)
    if not _HOST.fullmatch(name):
        bad = next((char for char in name if not re.match(r"[A-Za-z0-9._-]", char)), name[:1])
        verb = "begin with" if bad in ".-" else "hold"
        raise InputError(f"{where}: a host name cannot {verb} {bad!r}")
    if len(name) > _NAME_LIMIT:
        raise InputError(f"{where}: longer than a host name's {_NAME_LIMIT} characters")


def compress_hosts(hosts: Sequence[str]) -> str:
    """Format hosts as Slurm does: neighbours that differ in their last number share a bracket.

    The order is preserved, so expanding restores the list; nothing follows a bracket, so every
    Slurm version can parse it.

    >>> compress_hosts(["n08", "n09", "n10", "n12", "login", "n1", "n02"])
    'n[08-10,12],login,n[1,02]'
    """
    groups: list[tuple[str, list[tuple[int, int, int]]]] = []
    for host in hosts:
        match = _NUMBERED.fullmatch(host)
        assert match is not None  # the pattern matches any text
        prefix, digits = match[1], match[2]
        if digits is None:
            groups.append((host, []))
            continue
        number, width = int(digits), len(digits)
        if not (groups and groups[-1][1] and groups[-1][0] == prefix):
            groups.append((prefix, [(number, number, width)]))
            continue
        ranges = groups[-1][1]
        first, last, padding = ranges[-1]
        follows = number == last + 1 and f"{number:0{padding}d}" == digits
        if follows and number - first < HOST_LIMIT:
            ranges[-1] = (first, number, padding)
        else:
            ranges.append((number, number, width))
    return ",".join(prefix + _write_ranges(ranges) for prefix, ranges in groups)


def _write_ranges(ranges: Sequence[tuple[int, int, int]]) -> str:
    words = [
        f"{first:0{width}d}" + (f"-{last:0{width}d}" if last > first else "")
        for first, last, width in ranges
    ]
    is_one = len(ranges) == 1 and ranges[0][0] == ranges[0][1]
    return words[0] if is_one else f"[{','.join(words)}]" if words else ""


def expand_node_counts(text: str) -> list[int]:
    """Parse one number per node from SLURM_JOB_CPUS_PER_NODE and the like. Raises InputError.

    >>> expand_node_counts("72(x2),36")
    [72, 72, 36]
    """
    counts: list[int] = []
    for word in text.split(","):
        match = _COUNT.fullmatch(word.strip())
        times = int(match[2] or 1) if match else 0
        if match is None or not 1 <= times <= HOST_LIMIT - len(counts):
            raise InputError(f"{_short(text)}: not a list of counts as Slurm writes it: 72(x2),36")
        counts += [int(match[1])] * times
    return counts


def _short(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:57]}..."
