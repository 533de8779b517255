"""Parse and write hostfiles.

A hostfile is a Slurm node list, or has one of these forms:

deepspeed   host slots=4              one line per host
openmpi     host slots=4 max_slots=8  or one line per slot
mpich       host:4                    also of Intel MPI
plain       host
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Literal

from msgspec import Struct, structs

from hpcrun.errors import InputError, Problem, SpecError
from hpcrun.slurm import check_host, compress_hosts, expand_hosts

Form = Literal["deepspeed", "openmpi", "mpich", "plain", "slurm"]

# Open MPI's keywords: src/util/hostfile/hostfile_lex.l of its runtime, PRRTE.
_SLOTS = re.compile(r"(slots|cpu|count)=([0-9]+)")
_MAX_SLOTS = re.compile(r"(?:max[-_](?:slots|cpu|count)|(?:slots|cpu|count)[-_]max)=([0-9]+)")
# A file has the first of these forms that any of its lines has.
_FORM_ORDER: tuple[Form, ...] = ("openmpi", "deepspeed", "mpich", "slurm", "plain")
_MAX_SLOTS_PER_HOST = 65536  # far above any real number of processes on a host


class Host(Struct, frozen=True):
    """A host of a pool; ``slots`` is the number of processes that it runs, None if unknown."""

    name: str
    slots: int | None = None
    max_slots: int | None = None


class _HostfileLine(Struct, frozen=True):
    """One line of a hostfile and the form that it has."""

    number: int
    host: Host
    form: Form


def parse_hostfile(text: str, source: str, form: Form | None = None) -> list[Host]:
    r"""Parse a hostfile.

    The slots of repeated lines of a host are added up, as in Open MPI and MPICH; a line without a
    number is one slot. In DeepSpeed's form a host may appear only once; a file in which all lines
    are ``host slots=N`` has this form.

    Args:
        source: The name of the file for messages.
        form: The form of the file; None detects it.

    Raises:
        SpecError: With all problems.

    >>> parse_hostfile("# two\nn1 slots=4\nn2 slots=2\n", "pool")
    [Host(name='n1', slots=4, max_slots=None), Host(name='n2', slots=2, max_slots=None)]
    >>> [(host.name, host.slots) for host in parse_hostfile("a\nb\na\n", "pool")]
    [('a', 2), ('b', 1)]
    >>> [host.name for host in parse_hostfile("n[1-2]\n", "pool")]
    ['n1', 'n2']
    """
    lines: list[_HostfileLine] = []
    problems: list[Problem] = []
    for number, line in enumerate(text.removeprefix("\ufeff").splitlines(), start=1):
        try:
            lines += _parse_line(line.partition("#")[0].strip(), number)
        except InputError as error:
            problems.append(Problem("", error.message, source, number))
    if not lines and not problems:
        problems.append(Problem("", "no host in it", source))
    shown = {"plain", *(line.form for line in lines)}
    found = form if form is not None else next(one for one in _FORM_ORDER if one in shown)
    problems += _find_misfits(lines, found, source)
    if problems:
        raise SpecError(sorted(problems, key=lambda problem: problem.line or 0))
    return _merge_lines(lines, found)


def _parse_line(line: str, number: int) -> list[_HostfileLine]:
    if not line:
        return []
    if re.search(r"[\[\],]", line):
        return [_HostfileLine(number, Host(name), "slurm") for name in expand_hosts(line)]
    first, *words = re.sub(r"\s*=\s*", "=", line).split()
    name, colon, count = first.partition(":")
    if "@" in name:
        raise InputError(f"{name}: user names belong in ~/.ssh/config, not in a hostfile")
    check_host(name)
    form: Form = "plain"
    slots = most = None
    if colon:
        form, slots = "mpich", _parse_count(count, first)
    for word in words:
        if (match := _SLOTS.fullmatch(word)) and slots is None:
            form = "openmpi" if match[1] != "slots" or form == "openmpi" else "deepspeed"
            slots = _parse_count(match[2], word)
        elif (match := _MAX_SLOTS.fullmatch(word)) and most is None and not colon:
            form, most = "openmpi", _parse_count(match[1], word)
        else:
            raise InputError(f"{name}: unexpected word {word!r}; a line is `{name} slots=4`")
    if most is not None and most < (slots or 1):
        raise InputError(f"{name}: max_slots={most} is less than slots={slots or 1}")
    return [_HostfileLine(number, Host(name, slots, most), form)]


def _parse_count(text: str, where: str) -> int:
    if not re.fullmatch(r"[0-9]{1,6}", text) or not 1 <= int(text) <= _MAX_SLOTS_PER_HOST:
        raise InputError(f"{where}: slots are a number from 1 to {_MAX_SLOTS_PER_HOST}")
    return int(text)


# The forms of lines that a file of each form may contain.
_ALLOWED_LINES: dict[Form, set[Form]] = {
    "deepspeed": {"deepspeed"},
    "openmpi": {"openmpi", "deepspeed", "plain"},
    "mpich": {"mpich", "plain"},
    "plain": {"plain"},
    "slurm": {"slurm", "plain"},
}


def _find_misfits(lines: Sequence[_HostfileLine], form: Form, source: str) -> list[Problem]:
    """Find lines of another form, and hosts that appear twice in a form without repetition."""
    problems = []
    seen: dict[str, int] = {}
    for line in lines:
        name = line.host.name
        if line.form not in _ALLOWED_LINES[form]:
            why = f"a line in {line.form} format among lines in {form} format"
            why = "no slots, where other lines have them" if line.form == "plain" else why
            problems.append(Problem("", f"{name}: {why}", source, line.number))
        if name in seen and form in ("deepspeed", "slurm"):
            why = f"appears twice, first on line {seen[name]}"
            if form == "deepspeed":
                why += "; DeepSpeed refuses that: write it once, with all its slots"
            problems.append(Problem("", f"{name}: {why}", source, line.number))
        seen.setdefault(name, line.number)
    return problems


def _merge_lines(lines: Sequence[_HostfileLine], form: Form) -> list[Host]:
    """Merge the lines of each host; a plain list in which each host appears once has no slots."""
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
    r"""Write a hostfile in the given order of hosts.

    Raises:
        InputError: If the form cannot express the hosts.

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
        return compress_hosts([host.name for host in hosts]) + "\n"
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
