"""Hosts as Slurm writes them, ``node[01-04,07]`` and ``72(x2),36``, and as hostfiles do.

A node list is what squeue, SLURM_JOB_NODELIST and slurm.conf hold. Hosts come in the order in which
``scontrol show hostnames`` gives them, which is that of the ranks (src/common/hostlist.c).
A hostfile has one of these forms, or is a node list:

deepspeed   host slots=4              each host once
openmpi     host slots=4 max_slots=8  or a host once for each slot
mpich       host:4                    MPICH's and Intel MPI's
plain       host
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from itertools import product
from math import prod
from typing import Literal

from msgspec import Struct, structs

from hpcrun.errors import InputError, Problem, SpecError
from hpcrun.patterns import pattern_of

# Slurm's own limit for one range (MAX_RANGE in src/common/hostlist.c, 20.11 to 26.05), here for
# the whole list: a range of a billion must not fill the memory.
HOST_LIMIT = 65536
_NAME_LIMIT = 253  # characters in a host name, RFC 1035
_DIGITS = 18  # more do not fit into the 64 bits that Slurm counts in

# A name with its bracket groups; what parts names; a bracket that stands wrong.
_PIECE = pattern_of(r"((?:[^\s,\[\]]|\[[^\[\]]*\])+)|[\s,]+|([\[\]])")
_HOST = pattern_of(r"[A-Za-z0-9_][A-Za-z0-9._-]*")
_RANGE = pattern_of(r"([0-9]{1,64})(?:-([0-9]{1,64}))?")
_NUMBERED = pattern_of(rf"(.*?)([0-9]{{1,{_DIGITS}}})?", re.DOTALL)
_COUNT = pattern_of(r"([0-9]{1,9})(?:\(x([0-9]{1,9})\))?")


def expand(text: str) -> list[str]:
    """Return the hosts of a node list, in Slurm's order, duplicates included.

    Padding is kept and is that of a range's first number. Of several bracket groups the last runs
    fastest and the last but one slowest. Groups may be followed by a suffix, as Slurm takes it
    since 23.11. Raises InputError for what Slurm refuses, for a bracket that is not closed (Slurm
    before 23.02 guessed there), for names that no host can have, and for more than HOST_LIMIT
    hosts.

    >>> expand("node[01-03,07],login")
    ['node01', 'node02', 'node03', 'node07', 'login']
    >>> expand("r[1-2]n[098-100]-ib")
    ['r1n098-ib', 'r1n099-ib', 'r1n100-ib', 'r2n098-ib', 'r2n099-ib', 'r2n100-ib']
    >>> expand("[8-11]"), expand("")
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
    """Read ``7`` or ``01-04``: first number, last number, width."""
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
    """Refuse what no host is called; ``token``: where it stands. Raises InputError.

    >>> check_host("gpu-7.cluster")
    """
    where = _short(token or name)
    if not _HOST.fullmatch(name):
        bad = next((char for char in name if not re.match(r"[A-Za-z0-9._-]", char)), name[:1])
        verb = "begin with" if bad in ".-" else "hold"
        raise InputError(f"{where}: a host name cannot {verb} {bad!r}")
    if len(name) > _NAME_LIMIT:
        raise InputError(f"{where}: longer than a host name's {_NAME_LIMIT} characters")


def compress(hosts: Sequence[str]) -> str:
    """Write hosts as Slurm does: neighbours that differ in their last number share a bracket.

    The order is kept, so that expanding gives the same list; every Slurm version reads it, since
    nothing follows a bracket.

    >>> compress(["n08", "n09", "n10", "n12", "login", "n1", "n02"])
    'n[08-10,12],login,n[1,02]'
    """
    groups: list[tuple[str, list[tuple[int, int, int]]]] = []
    for host in hosts:
        match = _NUMBERED.fullmatch(host)
        assert match is not None  # it matches any text
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


def expand_counts(text: str) -> list[int]:
    """Return one number a node from SLURM_JOB_CPUS_PER_NODE and its like. Raises InputError.

    >>> expand_counts("72(x2),36")
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


# ---- hostfiles -----------------------------------------------------------------------------------


Form = Literal["deepspeed", "openmpi", "mpich", "plain", "slurm"]

# Open MPI's names of both numbers: src/util/hostfile/hostfile_lex.l of its runtime, PRRTE.
_SLOTS = re.compile(r"(slots|cpu|count)=([0-9]+)")
_MAX_SLOTS = re.compile(r"(?:max[-_](?:slots|cpu|count)|(?:slots|cpu|count)[-_]max)=([0-9]+)")
# A file has the form of the line that shows the most.
_STRONGEST: tuple[Form, ...] = ("openmpi", "deepspeed", "mpich", "slurm", "plain")
_MOST_SLOTS = 65536  # processes on one host, far above any


class Host(Struct, frozen=True):
    """A host of a pool; ``slots`` is how many processes it takes, None where nobody says."""

    name: str
    slots: int | None = None
    max_slots: int | None = None


class _Line(Struct, frozen=True):
    """One line; ``form`` is the one that the line shows, or plain."""

    number: int
    host: Host
    form: Form


def parse_hostfile(text: str, source: str, form: Form | None = None) -> list[Host]:
    r"""Read a hostfile in any of the forms; ``form`` says which, None finds out.

    A host that stands on several lines has the sum of their slots, as Open MPI and MPICH add them
    up, a line without a number being one slot. Not so in DeepSpeed's form, which has each host
    once; lines ``host slots=N`` alone are taken for that. Raises SpecError with all problems.

    >>> parse_hostfile("# two\nn1 slots=4\nn2 slots=2\n", "pool")
    [Host(name='n1', slots=4, max_slots=None), Host(name='n2', slots=2, max_slots=None)]
    >>> [(host.name, host.slots) for host in parse_hostfile("a\nb\na\n", "pool")]
    [('a', 2), ('b', 1)]
    >>> [host.name for host in parse_hostfile("n[1-2]\n", "pool")]
    ['n1', 'n2']
    """
    lines: list[_Line] = []
    problems: list[Problem] = []
    for number, line in enumerate(text.removeprefix("\ufeff").splitlines(), start=1):
        try:
            lines += _parse_line(line.partition("#")[0].strip(), number)
        except InputError as error:
            problems.append(Problem("", error.message, source, number))
    if not lines and not problems:
        problems.append(Problem("", "no host in it", source))
    shown = {"plain", *(line.form for line in lines)}
    found = form if form is not None else next(one for one in _STRONGEST if one in shown)
    problems += _misfits(lines, found, source)
    if problems:
        raise SpecError(sorted(problems, key=lambda problem: problem.line or 0))
    return _merge(lines, found)


def _parse_line(line: str, number: int) -> list[_Line]:
    if not line:
        return []
    if re.search(r"[\[\],]", line):
        return [_Line(number, Host(name), "slurm") for name in expand(line)]
    first, *words = re.sub(r"\s*=\s*", "=", line).split()
    name, colon, count = first.partition(":")
    if "@" in name:
        raise InputError(f"{name}: user names belong in ~/.ssh/config, not in a hostfile")
    check_host(name)
    form: Form = "plain"
    slots = most = None
    if colon:
        form, slots = "mpich", _count(count, first)
    for word in words:
        if (match := _SLOTS.fullmatch(word)) and slots is None:
            form = "openmpi" if match[1] != "slots" or form == "openmpi" else "deepspeed"
            slots = _count(match[2], word)
        elif (match := _MAX_SLOTS.fullmatch(word)) and most is None and not colon:
            form, most = "openmpi", _count(match[1], word)
        else:
            raise InputError(f"{name}: {word!r} is not known here; a line is `{name} slots=4`")
    if most is not None and most < (slots or 1):
        raise InputError(f"{name}: max_slots={most} is less than slots={slots or 1}")
    return [_Line(number, Host(name, slots, most), form)]


def _count(text: str, where: str) -> int:
    if not re.fullmatch(r"[0-9]{1,6}", text) or not 1 <= int(text) <= _MOST_SLOTS:
        raise InputError(f"{where}: slots are a number from 1 to {_MOST_SLOTS}")
    return int(text)


# What the lines of a form may look like.
_FITTING: dict[Form, set[Form]] = {
    "deepspeed": {"deepspeed"},
    "openmpi": {"openmpi", "deepspeed", "plain"},
    "mpich": {"mpich", "plain"},
    "plain": {"plain"},
    "slurm": {"slurm", "plain"},
}


def _misfits(lines: Sequence[_Line], form: Form, source: str) -> list[Problem]:
    """Find lines of another form, and hosts that stand twice where that has no meaning."""
    problems = []
    seen: dict[str, int] = {}
    for line in lines:
        name = line.host.name
        if line.form not in _FITTING[form]:
            why = f"a line of {line.form}'s form among those of {form}'s"
            why = "no slots, where other lines have them" if line.form == "plain" else why
            problems.append(Problem("", f"{name}: {why}", source, line.number))
        if name in seen and form in ("deepspeed", "slurm"):
            why = f"appears twice, first on line {seen[name]}"
            if form == "deepspeed":
                why += "; DeepSpeed refuses that: write it once, with all its slots"
            problems.append(Problem("", f"{name}: {why}", source, line.number))
        seen.setdefault(name, line.number)
    return problems


def _merge(lines: Sequence[_Line], form: Form) -> list[Host]:
    """Make one host of all lines that name it; names that each stand once say nothing of slots."""
    times = Counter(line.host.name for line in lines)
    if form == "slurm" or (form == "plain" and len(times) == len(lines)):
        return [line.host for line in lines]
    hosts: dict[str, Host] = {}
    for line in lines:
        new = structs.replace(line.host, slots=line.host.slots or 1)
        old = hosts.get(new.name, Host(new.name, 0))
        slots = (old.slots or 0) + (new.slots or 1)
        most = [count for count in (old.max_slots, new.max_slots) if count is not None]
        hosts[new.name] = Host(new.name, slots, max(slots, *most) if most else None)
    return list(hosts.values())


def format_hostfile(hosts: Sequence[Host], form: Form) -> str:
    r"""Write a hostfile, in the order given. Raises InputError for what the form cannot say.

    >>> format_hostfile([Host("n1", 4), Host("n2", 2)], "deepspeed")
    'n1 slots=4\nn2 slots=2\n'
    >>> format_hostfile([Host("n1", 4), Host("n2", 2)], "mpich")
    'n1:4\nn2:2\n'
    >>> format_hostfile([Host("n1"), Host("n2")], "slurm")
    'n[1-2]\n'
    """
    if not hosts:
        raise InputError("no hosts are named", fix="name some, as in node[01-04,07]")
    twice = [name for name, times in Counter(host.name for host in hosts).items() if times > 1]
    if twice:
        raise InputError(f"{twice[0]}: the host is named twice", fix="name each host once")
    if form == "slurm":
        return compress([host.name for host in hosts]) + "\n"
    return "".join(_format_line(host, form) + "\n" for host in hosts)


def _format_line(host: Host, form: Form) -> str:
    if form == "plain":
        return host.name
    if host.slots is None:
        raise InputError(
            f"{host.name}: the number of slots of a host is not given",
            fix="--slots N: the GPUs, or the processes, of each host",
        )
    if host.slots < 1:
        raise InputError(f"{host.name}: no slot on this host", fix="leave the host out, or --slots")
    if form == "mpich":
        return f"{host.name}:{host.slots}"
    most = form == "openmpi" and host.max_slots is not None
    return f"{host.name} slots={host.slots}" + (f" max_slots={host.max_slots}" if most else "")
