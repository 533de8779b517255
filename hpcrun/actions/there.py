"""What a job meets where it runs: variables, paths, files; here, or asked of the cluster's host.

Questions are collected: settle() computes as if all answers were there, asks for those that lack in
one trip, and computes again by them. Here each is answered at once.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from stat import S_ISDIR
from typing import TypeVar, cast

from msgspec import Struct

from hpcrun.assets import home_dir
from hpcrun.context import Context, expand_user_path, refuse_other_clusters
from hpcrun.errors import InputError, OutOfReach
from hpcrun.monitor import free_space
from hpcrun.ownership import is_writable_by_others
from hpcrun.remote import Result
from hpcrun.runs import RUN_ID, parse_sweep_id

T = TypeVar("T")

# A question is its kind and its words: ("look", PATH), ("spot", PATH, "probe" or ""), ("read",
# FILE), ("run", COMMAND...); and, of a FOLDER as the profile writes it, ("place", FOLDER, "probe")
# and ("own", FOLDER), the user's own files in it.
Question = tuple[str, ...]
# What a login at the host has in its environment; asked first: most questions are made of it.
ENVIRONMENT: Question = ("env",)
# Seconds that one command may take; a Python on a cold file system, and a busy slurmctld.
PATIENCE = 60
# The longest file that is read, in bytes.
_LONGEST = 1 << 20
_FULL = (errno.ENOSPC, errno.EDQUOT)
_REFUSED = (errno.EACCES, errno.EPERM, errno.EROFS)
# ``ask`` prints what a question prints, a mark, its exit code, its stderr, and the mark. The
# letters of look are those of look() below; spot prints the fields of a Spot, each up to a NUL,
# and own names and texts.
_SCRIPT = r"""
exec 3>&1
ask() {
  err=$( { "$@" </dev/null; } 2>&1 >&3 ); printf '\n%s %s\n%s\n%s\n' "$mark" $? "$err" "$mark"
}
run() (
  cd / || exit; unset LC_ALL
  type -P -- "$1" >/dev/null || exit 127
  if type -P timeout >/dev/null; then exec timeout "$patience" "$@"; else exec "$@"; fi
)
read_file() { [[ -f $1 ]] && head -c "$longest" -- "$1"; }
look() {
  found=
  [[ -f $1 ]] && found+=f; [[ -d $1 ]] && found+=d; [[ -e $1 ]] && found+=e
  [[ -x $1 ]] && found+=x; [[ -w $1 ]] && found+=w
  if [[ -d $1 ]]; then inside=("$1"/*); ((${#inside[@]} == 0)) || found+=n; fi
  top=${1#/}; [[ -e /${top%%/*} ]] || found+='?'
  printf '%s' "$found"
}
spot() {
  at=$1 fault= refusal=
  while [[ ! -e $at && ! -L $at && $at == /?* ]]; do at=${at%/*}; at=${at:-/}; done
  [[ -d $at ]] || fault='not a folder'
  if [[ ! $fault && $2 ]]; then
    probe=$at/.hpcrun-probe-$$
    refusal=$(mkdir -- "$probe" 2>&1) && { rmdir -- "$probe"; refusal=; }
    refusal=${refusal##*: }
  elif [[ ! $fault && ! ( -w $at && -x $at ) ]]; then
    refusal='Permission denied'
  fi
  read -r device mode <<<"$(stat -c '%d %a' -- "$at" 2>/dev/null)"
  read -r free unit blocks files inodes \
    <<<"$(stat -f -c '%a %S %b %d %c' -- "$at" 2>/dev/null)"
  printf '%s\0' "$at" "$(cd -P -- "$at" 2>/dev/null && pwd)" "$fault" "$refusal" "$device" \
    "$mode" "$free" "$unit" "$blocks" "$files" "$inodes"
}
own() {
  cd -- "$1" 2>/dev/null || return 0
  for each in [!.]*; do
    [[ -f $each && ! -L $each && -O $each ]] || continue
    mode=$(stat -c %a -- "$each")
    (( 8#${mode:-22} & 8#22 )) && continue
    printf '%s\0' "$each"; head -c 4096 -- "$each" | tr -d '\0'; printf '\0'
  done
}
"""


class There(Struct, frozen=True):
    """The cluster's own words: a login's variables, and the folders of the runs and of caches."""

    environ: Mapping[str, str]
    runs_dir: Path
    cache_dir: Path


class Spot(Struct, frozen=True, kw_only=True):
    """A path where jobs run: ``at`` is the nearest to it that is there, ``real`` without links.

    ``fault``: why it is no folder; ``refusal``: why nothing can be written to it. ``is_open``:
    others can replace what is in it. ``bytes`` and ``files`` are what its file system has left,
    None where it does not say.
    """

    at: Path
    real: str = ""
    fault: str = ""
    refusal: str = ""
    device: int = 0
    is_open: bool = False
    bytes: int | None = None
    files: int | None = None


class Unanswered(Exception):
    """Only the next trip brings what is needed; settle() catches it."""


def there(context: Context) -> There:
    """Return what jobs meet; where the cluster is another machine, it is asked once."""
    if context.cluster.host is None:
        return There(context.environ, context.runs_dir, context.cache_dir)
    if ENVIRONMENT not in context.asked:
        _answer(context, [ENVIRONMENT, *_unanswered(context)])
    environ = cast(Mapping[str, str], context.asked[ENVIRONMENT])
    refuse_other_clusters(context.cluster, environ)
    home, source, profile = Path(home_dir(environ)), context.cluster_source, context.cluster
    return There(
        environ,
        expand_user_path(profile.runs_dir, environ, home, f"{source}: runs_dir"),
        expand_user_path(profile.cache_dir, environ, home, f"{source}: cache_dir"),
    )


def parse_environ(text: str) -> dict[str, str]:
    r"""Read what ``env -0`` prints.

    >>> parse_environ("A=1\0B=x=y\0")
    {'A': '1', 'B': 'x=y'}
    """
    pairs = (line.partition("=") for line in text.split("\0") if "=" in line)
    return {name: value for name, _, value in pairs}


def _trip(context: Context, argv: Sequence[str], stdin: str | None = None) -> Result:
    """Ask what can be asked twice: again, where the link broke meanwhile."""
    transport = context.transport()
    try:
        return transport.run(argv, stdin=stdin)
    except OutOfReach as lost:
        if not lost.maybe_done:
            raise
        return transport.run(argv, stdin=stdin)


def path_there(context: Context, text: str, where: str) -> Path:
    """Fill ``~`` and variables of a path that a job uses. Raises InputError."""
    if context.cluster.host is None:
        return expand_user_path(text, context.environ, context.project, where)
    environ = there(context).environ
    return expand_user_path(text, environ, Path(home_dir(environ)), where)


def look(context: Context, path: Path | str) -> str:
    """Say what a path is where jobs run, by letters: e there, f file, d folder, x may be run,
    w may be written, n not empty; ? even its top folder is unknown there."""
    if context.cluster.host is None:
        return look_here(Path(path))
    found = context.asked.setdefault(("look", str(path)), None)
    return "efdxwn" if found is None else cast(Result, found).stdout


def look_here(path: Path) -> str:
    """Say what a path is on this machine; see look()."""
    try:
        found = "e" if path.exists() else ""
        found += ("f" if path.is_file() else "") + ("d" if path.is_dir() else "")
        found += "".join(x for x, mode in (("x", os.X_OK), ("w", os.W_OK)) if os.access(path, mode))
        if path.is_dir() and os.access(path, os.R_OK) and any(path.iterdir()):
            found += "n"
        return found if found or Path(*path.parts[:2]).exists() else "?"
    except OSError:  # a folder above it cannot be searched, or the name is too long
        return "?"


def spots(context: Context, paths: Sequence[Path], *, probe: bool = True) -> list[Spot]:
    """Look at folders that are written to; with ``probe`` by writing to them."""
    if context.cluster.host is None:
        return [_spot_here(path, probe=probe) for path in paths]
    answers = ask(context, [("spot", str(path), "probe" * probe) for path in paths])
    return [_parse_spot(answer.stdout, path) for answer, path in zip(answers, paths, strict=True)]


def own_places(context: Context) -> dict[str, tuple[Path, Spot]]:
    """Look at the folders of the runs and of caches, by the profile's keys, and write to them."""
    keys = ("runs_dir", "cache_dir")
    if context.cluster.host is None:
        return {key: (path := getattr(context, key), _spot_here(path, probe=True)) for key in keys}
    answers = ask(context, [("place", getattr(context.cluster, key), "probe") for key in keys])
    folders = there(context)
    found = zip(keys, (folders.runs_dir, folders.cache_dir), answers, strict=True)
    return {key: (path, _parse_spot(answer.stdout, path)) for key, path, answer in found}


def own_files(context: Context, folder: str) -> dict[str, str]:
    """Read the user's own small files in a folder at the cluster's host, which nobody else can
    write to; the ``folder`` is as the profile writes it. To be called by settle()."""
    (answer,) = ask(context, [("own", folder)])
    words = answer.stdout.split("\0")
    return dict(zip(words[::2], words[1::2], strict=False))


def want(context: Context, questions: Sequence[Question]) -> None:
    """Name questions that will be asked, so that the next trip brings their answers too."""
    if context.cluster.host is not None:
        for question in questions:
            context.asked.setdefault(question, None)


def ask(context: Context, questions: Sequence[Question]) -> list[Result]:
    """Return the answers to questions of the kinds "run" and "read", and so on.

    A command that is not there has the exit code 127 and no output, one that did not end in
    PATIENCE seconds 124. Raises Unanswered, which is settle()'s.
    """
    if context.cluster.host is None:
        return [_ask_here(context, question) for question in questions]
    want(context, questions)
    found = [context.asked[question] for question in questions]
    if None in found:
        raise Unanswered
    return cast(list[Result], found)


def _ask_here(context: Context, question: Question) -> Result:
    kind, *words = question
    if kind == "run":
        try:
            return context.transport().run(words, cwd="/", timeout=PATIENCE)
        except OutOfReach as silence:
            code = 124 if silence.maybe_done else 127
            return Result(words, code, "", silence.message)
    try:
        with Path(words[0]).open("rb") as file:
            text = file.read(_LONGEST).decode("utf-8", "surrogateescape")
        return Result(words, 0, text, "")
    except OSError as error:
        return Result(words, 1, "", error.strerror or str(error))


def settle(context: Context, compute: Callable[[], T]) -> T:
    """Compute what asks there; all that it asks for costs one trip, mostly.

    Raises what ``compute`` raises; and OutOfReach.
    """
    while True:
        error: Exception | None = None
        try:
            found = compute()
        except (InputError, Unanswered) as refused:
            error = refused
        wanted = _unanswered(context)
        if not wanted:
            if error is not None:
                raise error
            return found
        _answer(context, wanted)


def _unanswered(context: Context) -> list[Question]:
    return [question for question, answer in context.asked.items() if answer is None]


def _answer(context: Context, questions: Sequence[Question]) -> None:
    """Ask all of them in one trip; the environment is the first of them, if it is one."""
    from hpcrun.remote import folder_word, quote  # here: most clusters are here

    mark = os.urandom(16).hex()
    script = f"mark={mark} patience={PATIENCE} longest={_LONGEST}\n{_SCRIPT}"
    names = {"read": "read_file", "place": "spot"}
    if questions[0] == ENVIRONMENT:  # before the script's own language is set
        script += "ask env -0\n"
    script += "unset -f cd; LC_ALL=C; shopt -s nullglob dotglob\n"
    for kind, *words in questions:
        name = names.get(kind, kind)
        if kind in ("place", "own"):  # a variable that is not set there ends nothing but this
            inner = " ".join([name, folder_word(words[0]), *map(quote, words[1:])])
            script += f"ask eval {quote(inner)}\n"
        elif (kind, *words) != ENVIRONMENT:
            script += " ".join(["ask", name, *map(quote, words)]) + "\n"
    answer = _trip(context, ["bash", "-s"], script)
    each = re.compile(rf"(.*?)\n{mark} ([0-9]{{1,3}})\n(.*?)\n{mark}\n", re.DOTALL)
    found = [
        Result(list(question[1:]), int(match[2]), match[1], match[3])
        for question, match in zip(questions, each.finditer(answer.stdout), strict=False)
    ]
    if len(found) < len(questions):
        raise OutOfReach(f"{context.cluster.host}: the answer ended too early")
    context.asked.update(zip(questions, found, strict=True))
    if questions[0] == ENVIRONMENT:
        if found[0].exit_code != 0:
            del context.asked[ENVIRONMENT]
            raise OutOfReach(f"{context.cluster.host}: env ended with code {found[0].exit_code}")
        context.asked[ENVIRONMENT] = parse_environ(found[0].stdout)


# ---- folders -----------------------------------------------------------------------------------


def _spot_here(path: Path, *, probe: bool) -> Spot:
    for folder in (path, *path.parents):
        try:
            info = folder.stat()
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            return Spot(at=folder, fault=error.strerror or str(error))
        if not S_ISDIR(info.st_mode):
            return Spot(at=folder, fault="not a folder")
        refusal = _refusal(folder) if probe else ""
        if not probe and not os.access(folder, os.W_OK | os.X_OK):
            refusal = "Permission denied"
        space, files = free_space(folder)
        return Spot(
            at=folder,
            real=os.path.realpath(folder),
            refusal=refusal,
            device=info.st_dev,
            is_open=is_writable_by_others(folder),
            bytes=space,
            files=files,
        )
    return Spot(at=path, fault="no such folder")


def _refusal(folder: Path) -> str:
    """Explain why nothing can be written to a folder; "" where it can.

    Mode bits do not decide (root on NFS is nobody, a disk may be read-only): so a file without a
    name is opened, which is gone when it is closed. Where the file system has none (NFS, Lustre),
    a folder is made and removed.
    """
    try:
        os.close(os.open(folder, getattr(os, "O_TMPFILE", 0) | os.O_WRONLY, 0o600))
        return ""
    except OSError as error:
        if error.errno in (*_FULL, *_REFUSED):
            return error.strerror or str(error)
    probe = folder / f".hpcrun-probe-{os.getpid()}"
    try:
        probe.mkdir()
        probe.rmdir()
    except FileExistsError:
        return ""
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _parse_spot(text: str, path: Path) -> Spot:
    fields = text.split("\0")
    if len(fields) < 12:
        return Spot(at=path, fault="could not be looked at")
    at, real, fault, refusal = fields[:4]
    device, mode, free, unit, blocks, files, inodes = (
        int(field, 8 if number == 1 else 10)
        if re.fullmatch("[0-7]+" if number == 1 else "[0-9]{1,20}", field)
        else 0
        for number, field in enumerate(fields[4:11])
    )
    return Spot(
        at=Path(at),
        real=real,
        fault=fault,
        refusal=refusal,
        device=device,
        is_open=mode & 0o1002 == 0o002,
        bytes=free * unit if blocks else None,
        files=files if inodes else None,
    )


def here(context: Context, path: Path) -> Path | None:
    """Return where a path of the cluster is on this machine.

    Where the cluster is another machine, only the folders of its runs are here, in the mirror.
    Return None for any other path: a file of the same name here is a different file.
    """
    path = Path(os.path.normpath(path))  # ".." in a record must not lead out of the mirror
    if context.cluster.host is None:
        return path
    for folder in (path, *path.parents):
        mirrored = context.runs_dir / folder.name
        if (RUN_ID.fullmatch(folder.name) or parse_sweep_id(folder.name)) and mirrored.is_dir():
            return mirrored / path.relative_to(folder)
    return None
