"""Find the rank that blocks a run, from stack traces and PyTorch's flight recorder dumps."""

from __future__ import annotations

import contextlib
import io
import pickle
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from msgspec import Struct, structs

from hpcrun.files import open_plain, read_bounded
from hpcrun.runs.ends import Collective, Stall, Suspect

# The prefix of TORCH_FR_DUMP_TEMP_FILE in plan/environment.py, and the rank.
_DUMP_NAME = re.compile(r"flight-([0-9]{1,6})")
# Limits in bytes for one dump (2000 collectives with their stacks take a few MB), and for all
# dumps.
_MAX_DUMP_BYTES, _MAX_TOTAL_BYTES = 64 << 20, 1 << 30
_STACK_NAME, _STACK_BYTES = re.compile(r"rank-[0-9]{1,6}\.txt"), 1 << 18
_HEAD = re.compile(r"rank ([0-9]{1,9}) node ([0-9]{1,9}) host (\S+) pid ")
_PY_SPY = re.compile(r" {4}(\S+) \((.*):([0-9]+)\)")
_FAULTHANDLER = re.compile(r'  File "(.*)", line ([0-9]+) in (.*)')
_COLLECTIVE = re.compile(r"torch/distributed/distributed_c10d\.py$|deepspeed/comm/")
# Positions that explain a stall without a comparison with other ranks.
_SELF_EXPLAINING = re.compile(r"asleep|stopped|waiting for a file")


class Call(Struct, frozen=True):
    """A collective that a rank has entered, and whether the rank has completed it."""

    name: str
    is_done: bool


class Group(Struct):
    """A process group: its ranks, and the collectives that each has entered, by sequence number."""

    ranks: set[int]
    calls: dict[int, dict[int, Call]]


def find_culprit(stall: Stall, attempt: Path, logs: Path) -> Stall:
    """Add the rank that blocks the run, and the collective in which the others wait, to a stall.

    Without evidence, the suspect is ``stall.ranks``, the rank whose log stopped first.
    """
    stacks = _read_stacks(tuple(_list_mtimes(attempt / "stacks", _STACK_NAME, 0.0)))
    ranks, why, collective = find_outlier_ranks(
        {rank: place for rank, (_, _, place) in stacks.items()}
    )
    if not ranks:
        ranks, why = stall.ranks, "the first whose log stopped"
    suspect = None
    if ranks:
        node, host, _ = stacks.get(ranks[0], (None, None, ""))
        suspect = Suspect(rank=ranks[0], node=node, host=host, why=why)
    found = Collective(name=collective) if collective else None
    stall = structs.replace(stall, ranks=ranks, suspect=suspect, collective=found)
    return add_flight_dumps(stall, logs)


@lru_cache(maxsize=8)
def _read_stacks(stamps: tuple[tuple[str, int], ...]) -> dict[int, tuple[int, str, str]]:
    """Read the node, host and position of each rank; cached until the stack files change."""
    found = {}
    for name, _ in stamps:
        with contextlib.suppress(OSError), open_plain(Path(name)) as file:
            text = file.read(_STACK_BYTES).decode("utf-8", "replace")
            if head := _HEAD.match(text):
                found[int(head[1])] = int(head[2]), head[3], parse_stack_place(text)
    return found


def parse_stack_place(stack: str) -> str:
    r"""Describe the position of the main thread in the output of stacks.sh for a rank.

    The result is ``in all_reduce`` for a wait for other ranks, else a line of the program, else the
    kernel's state of the process.

    >>> parse_stack_place("rank 0 pid 7\nS futex\nby py-spy\n\nThread 7 (idle)\n    f (a.py:3)")
    'at f (a.py:3)'
    >>> parse_stack_place("rank 0 pid 7\nS hrtimer_nanosleep\n")
    'asleep'
    >>> parse_stack_place("rank 0 pid -\n\n")
    'ended'
    """
    first, _, rest = stack.partition("\n")
    waits = rest.partition("\n")[0]
    pid = first.rpartition(" ")[2]
    # py-spy knows the name of a thread only if the program has imported threading.
    main = re.compile(
        rf'(?m)^(Thread.*"MainThread".*|Thread {re.escape(pid)} .*|Current thread .*)\n'
    )
    begin = main.search(stack)
    at = inside = waiting = ""
    for line in stack[begin.end() :].split("\n") if begin else ():
        if frame := _PY_SPY.fullmatch(line):
            function, file, number = frame.groups()
        elif frame := _FAULTHANDLER.fullmatch(line):
            file, number, function = frame.groups()
        else:
            break
        at = at or f"at {function} ({file.rpartition('/')[2]}:{number})"
        if _COLLECTIVE.search(file):
            inside = f"in {function}"
        elif file.endswith("torch/autograd/graph.py") and function == "_engine_run_backward":
            waiting = waiting or "in backward"
        elif re.search(r"torch/cuda/[^:]*$", file) and function == "synchronize":
            waiting = waiting or "in synchronize"
    return inside or waiting or at or _describe_kernel_state(waits)


def _describe_kernel_state(waits: str) -> str:
    state, _, where = waits.partition(" ")
    if "nanosleep" in waits:
        return "asleep"
    plain = {"": "ended", "T": "stopped", "t": "stopped", "R": "running"}
    kind = "waiting for a file or device" if state == "D" else "waiting"
    return plain.get(state) or f"{kind} ({where})"


def find_outlier_ranks(places: Mapping[int, str]) -> tuple[list[int], str, str | None]:
    """Find the ranks at an unusual position, the reason, and the collective of the other ranks.

    Ranks outside of a collective come first if others are in one; then ranks that are not at the
    most common position; then ranks whose position explains the stall.

    >>> find_outlier_ranks({0: "in all_reduce", 1: "at load (data.py:7)", 2: "in all_reduce"})
    ([1], 'at load (data.py:7), 2 of 3 in all_reduce', 'all_reduce')
    """
    inside = [place for place in places.values() if place.startswith("in ")]
    counts = Counter(inside if 0 < len(inside) < len(places) else places.values())
    rest, count = counts.most_common(1)[0] if counts else ("", 0)
    if 0 < len(inside) < len(places):
        odd = [rank for rank, place in places.items() if not place.startswith("in ")]
    elif rest and 2 * count > len(places):
        odd = [rank for rank, place in places.items() if place != rest]
    else:
        odd = [rank for rank, place in places.items() if _SELF_EXPLAINING.match(place)]
        rest = ""
    odd = sorted(odd) if len(odd) < len(places) else []
    why = places[odd[0]] if odd else ""
    if odd and rest:
        why += f", {count} of {len(places)} {rest}"
    name = Counter(inside).most_common(1)[0][0].removeprefix("in ") if inside else None
    return odd, why, name


def _list_mtimes(folder: Path, name: re.Pattern[str], since: float) -> list[tuple[str, int]]:
    """List the matching files modified after ``since``, with their modification times."""
    found = []
    with contextlib.suppress(OSError):
        for path in folder.iterdir():
            if name.fullmatch(path.name) and path.stat().st_mtime >= since:
                found.append((str(path), path.stat().st_mtime_ns))
    return sorted(found)


def add_flight_dumps(stall: Stall, logs: Path) -> Stall:
    """Add the ranks missing from a collective, if the ranks wrote flight recorder dumps since."""
    stamps = _list_mtimes(logs, _DUMP_NAME, stall.since)
    found = _judge_dumps(tuple(stamps)) if stamps else None
    if found is None:
        return stall
    ranks, collective, why = found
    known = stall.suspect if stall.suspect and stall.suspect.rank in ranks else None
    known = known or Suspect(rank=ranks[0], why=why)
    suspect = structs.replace(known, why=why)
    return structs.replace(stall, ranks=ranks, suspect=suspect, collective=collective)


@lru_cache(maxsize=8)
def _judge_dumps(stamps: tuple[tuple[str, int], ...]) -> tuple[list[int], Collective, str] | None:
    """Analyze dumps; cached until the files change."""
    dumps: dict[int, Any] = {}
    left = _MAX_TOTAL_BYTES
    for name, _ in stamps:
        with contextlib.suppress(OSError, ValueError), open_plain(Path(name)) as file:
            data = read_bounded(file, name, min(_MAX_DUMP_BYTES, left))
            left -= len(data)
            dumps[int(name.rpartition("-")[2])] = read_dump(data)
    return find_missing_ranks(group_collectives(dumps), dumps.keys())


class _PlainUnpickler(pickle.Unpickler):
    """An unpickler for containers, strings and numbers that loads no classes or functions."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"{module}.{name} in a dump")

    def persistent_load(self, pid: Any) -> Any:
        raise pickle.UnpicklingError("a dump that is not whole")


# A truncated or malicious pickle can raise any of these errors.
_DAMAGES = (
    pickle.UnpicklingError,
    ArithmeticError,
    AttributeError,
    EOFError,
    LookupError,
    MemoryError,
    RuntimeError,  # recursion, and NotImplementedError
    TypeError,
)


def read_dump(data: bytes) -> Any:
    """Read a dump without executing any code in it. Raises ValueError.

    >>> read_dump(pickle.dumps({"entries": []}, protocol=2))
    {'entries': []}
    """
    try:
        return _PlainUnpickler(io.BytesIO(data)).load()
    except _DAMAGES as error:
        raise ValueError(str(error)) from error


def group_collectives(dumps: Mapping[int, Any]) -> list[Group]:
    """Group the collectives of all ranks by process group; malformed entries are ignored."""
    found: dict[str, Group] = {}
    for rank, dump in dumps.items():
        entries = dump.get("entries") if isinstance(dump, dict) else None
        for entry in entries if isinstance(entries, list) else []:
            if not isinstance(entry, dict) or entry.get("is_p2p"):
                continue
            names, seq = entry.get("process_group"), entry.get("collective_seq_id")
            if not isinstance(names, (tuple, list)) or not names or not isinstance(seq, int):
                continue
            group = found.setdefault(str(names[0]), Group(set(), {}))
            # Names of nccl and gloo begin with the backend.
            name = str(entry.get("profiling_name", "collective")).rpartition(":")[2][:80]
            # Completed gloo collectives are retired but keep the state "scheduled" (torch 2.13).
            is_done = entry.get("state") == "completed" or entry.get("retired") is True
            group.calls.setdefault(rank, {})[seq] = Call(name, is_done)
        configs = dump.get("pg_config") if isinstance(dump, dict) else None
        for name, config in configs.items() if isinstance(configs, dict) else ():
            if name in found and isinstance(config, dict):
                members = re.findall(r"[0-9]{1,6}", str(config.get("ranks"))[:1_000_000])
                found[name].ranks |= {int(member) for member in members}
    for group in found.values():
        group.ranks |= group.calls.keys()
    return list(found.values())


def find_missing_ranks(
    groups: Sequence[Group], dumped: Collection[int]
) -> tuple[list[int], Collective, str] | None:
    """Find the ranks that have not entered a collective in which others wait.

    The first such collective counts, because ranks enqueue many ahead of their GPUs. A rank that
    waits in another group is not the cause.

    Returns:
        The ranks, the collective and the reason, or None if the dumps do not show any.

    >>> before, waits = {7: Call("all_reduce", True)}, {8: Call("all_reduce", False)}
    >>> find_missing_ranks([Group({0, 1, 2}, {0: waits, 1: before, 2: waits})], {0, 1, 2})[2]
    'last in all_reduce #8, where 2 of 3 wait'
    """
    first = [
        {
            rank: min(seq for seq, call in calls.items() if not call.is_done)
            for rank, calls in group.calls.items()
            if not all(call.is_done for call in calls.values())
        }
        for group in groups
    ]
    waiting = {rank for each in first for rank in each}
    found = []
    for group, each in zip(groups, first, strict=True):
        if not each:
            continue
        stuck = min(each.values())
        names = Counter(calls[stuck].name for calls in group.calls.values() if stuck in calls)
        (name, count), *others = names.most_common()
        behind = sorted(
            rank for rank in group.ranks & {*dumped} if max(group.calls.get(rank, [0])) < stuck
        )
        why = f"last in {name} #{stuck}, where {count} of {len(group.ranks)} wait"
        if not behind and others:
            odd = {rank: calls[stuck].name for rank, calls in group.calls.items() if stuck in calls}
            behind = sorted(rank for rank, other in odd.items() if other != name)
            why = f"in {odd[behind[0]]} #{stuck}, where {count} of {len(group.ranks)} are in {name}"
        elif not behind:
            behind = sorted(group.ranks - {*dumped})
            why = f"without a dump, {count} of {len(group.ranks)} wait in {name} #{stuck}"
        if behind:
            free = [rank for rank in behind if rank not in waiting]
            found.append((not free, free or behind, Collective(name=name, seq=stuck), why))
    return min(found, key=lambda one: one[0])[1:] if found else None
