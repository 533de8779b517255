"""Queries about the host on which Slurm's commands run: its paths, files, commands and login.

A command of hpcrun lists what it needs to know, and Transport.run_queries() answers the list: by
system calls where the cluster is this machine, else by one bash script over SSH.
"""

from __future__ import annotations

import errno
import os
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from stat import S_ISDIR, S_ISREG
from string import Template
from typing import Any

from msgspec import Struct, structs

from hpcrun.errors import InputError, OutOfReach
from hpcrun.files import free_space
from hpcrun.ownership import is_own, is_writable_by_others
from hpcrun.remote.far import quote, quote_profile_path
from hpcrun.remote.local import LocalTransport
from hpcrun.remote.transport import Answers, Query, Result

# A Python on a cold file system and a busy slurmctld both take this long.
COMMAND_TIMEOUT_S = 60.0
_LEAST_OFFSET_S = 60.0
_LONGEST_FILE_BYTES = 1 << 20
_LONGEST_OWN_FILE_BYTES = 4096
# Exit codes of timeout(1), and of a shell for a program that cannot be run or found.
_NO_ANSWER = (124, 126, 127)
_FULL = (errno.ENOSPC, errno.EDQUOT)
_REFUSED = (errno.EACCES, errno.EPERM, errno.EROFS)


class LoginEnvironment(Struct, frozen=True):
    """The environment variables of a login."""

    def to_bash(self) -> str:
        return "env -0"

    def parse_answer(self, result: Result) -> dict[str, str]:
        if result.exit_code != 0:
            raise OutOfReach(f"env ended with code {result.exit_code}")
        return parse_environ(result.stdout)

    def answer_here(self, transport: LocalTransport) -> dict[str, str]:
        return transport.env


class UserId(Struct, frozen=True):
    """The user's number; None if the host does not tell."""

    def to_bash(self) -> str:
        return "id -u"

    def parse_answer(self, result: Result) -> int | None:
        text = result.stdout.strip()
        return int(text) if re.fullmatch("[0-9]{1,20}", text) else None

    def answer_here(self, transport: LocalTransport) -> int | None:
        return os.getuid()


class ClockOffset(Struct, frozen=True):
    """How many seconds the host's clock is ahead of this machine's; 0 for less than a minute.

    A smaller difference may be the time that the answer took.
    """

    def to_bash(self) -> str:
        return "date +%s"

    def parse_answer(self, result: Result) -> float:
        text = result.stdout.strip()
        if not re.fullmatch("[0-9]{1,11}", text):
            return 0.0
        offset = int(text) - time.time()
        return offset if abs(offset) >= _LEAST_OFFSET_S else 0.0

    def answer_here(self, transport: LocalTransport) -> float:
        return 0.0


class PathState(Struct, frozen=True, kw_only=True):
    """The state of a path, as far as the user may see it.

    ``is_known`` is False if not even the path's first folder exists, as for a file system that only
    compute nodes mount.
    """

    exists: bool = False
    is_file: bool = False
    is_folder: bool = False
    is_executable: bool = False
    is_writable: bool = False
    is_filled: bool = False
    is_known: bool = True


class PathProbe(Struct, frozen=True):
    """The state of an absolute path."""

    path: str

    def to_bash(self) -> str:
        return f"probe_path {quote(self.path)}"

    def parse_answer(self, result: Result) -> PathState:
        letters = result.stdout
        return PathState(
            exists="e" in letters,
            is_file="f" in letters,
            is_folder="d" in letters,
            is_executable="x" in letters,
            is_writable="w" in letters,
            is_filled="n" in letters,
            is_known="?" not in letters,
        )

    def answer_here(self, transport: LocalTransport) -> PathState:
        path = Path(self.path)
        try:
            is_folder = path.is_dir()
            exists = path.exists()
            return PathState(
                exists=exists,
                is_file=path.is_file(),
                is_folder=is_folder,
                is_executable=os.access(path, os.X_OK),
                is_writable=os.access(path, os.W_OK),
                is_filled=is_folder and os.access(path, os.R_OK) and any(path.iterdir()),
                is_known=exists or Path(*path.parts[:2]).exists(),
            )
        except OSError:  # a folder above it cannot be searched, or the name is too long
            return PathState(is_known=False)


class FolderState(Struct, frozen=True, kw_only=True):
    """The state of a folder, or of its nearest parent ``at`` that exists.

    ``real`` is that folder without symbolic links. ``fault`` tells why it is no folder, ``refusal``
    why it is not writable. ``is_open``: other users can replace its entries. ``bytes`` and
    ``files`` are what its file system has left; None if the file system does not tell.
    """

    at: Path
    real: str = ""
    fault: str = ""
    refusal: str = ""
    device: int = 0
    is_open: bool = False
    bytes: int | None = None
    files: int | None = None


class FolderProbe(Struct, frozen=True):
    """The state of a folder that a run writes to.

    ``expands``: the host fills in ~ and $NAME. ``writes``: whether the folder is writable is found
    by writing; else the mode bits decide.
    """

    path: str
    expands: bool = False
    writes: bool = True

    def to_bash(self) -> str:
        how = quote("write" * self.writes)
        return f"probe_folder {_quote_path(self.path, expands=self.expands)} {how}"

    def parse_answer(self, result: Result) -> FolderState:
        return _parse_folder(result.stdout, Path(self.path))

    def answer_here(self, transport: LocalTransport) -> FolderState:
        path = _expand_path(self.path, transport.env) if self.expands else self.path
        return _probe_folder(Path(path), writes=self.writes)


class ReadFile(Struct, frozen=True):
    """The text of a file, its first megabyte at most; "" if it cannot be read.

    ``expands``: the host fills in ~ and $NAME.
    """

    path: str
    expands: bool = False

    def to_bash(self) -> str:
        return f"read_file {_quote_path(self.path, expands=self.expands)}"

    def parse_answer(self, result: Result) -> str:
        return result.stdout

    def answer_here(self, transport: LocalTransport) -> str:
        try:
            path = _expand_path(self.path, transport.env) if self.expands else self.path
            with Path(path).open("rb") as file:
                return file.read(_LONGEST_FILE_BYTES).decode("utf-8", "surrogateescape")
        except (OSError, InputError):
            return ""


class ReadOwnFiles(Struct, frozen=True):
    """The user's own small files in a folder, by name; nobody else can write to these.

    ``expands``: the host fills in ~ and $NAME.
    """

    folder: str
    expands: bool = False

    def to_bash(self) -> str:
        return f"read_own_files {_quote_path(self.folder, expands=self.expands)}"

    def parse_answer(self, result: Result) -> dict[str, str]:
        words = result.stdout.split("\0")
        return dict(zip(words[::2], words[1::2], strict=False))

    def answer_here(self, transport: LocalTransport) -> dict[str, str]:
        found: dict[str, str] = {}
        try:
            folder = _expand_path(self.folder, transport.env) if self.expands else self.folder
            for path in Path(folder).iterdir():
                info = path.lstat()
                if not path.name.startswith(".") and S_ISREG(info.st_mode) and is_own(info):
                    with path.open("rb") as file:
                        data = file.read(_LONGEST_OWN_FILE_BYTES)
                    found[path.name] = data.decode("utf-8", "surrogateescape")
        except (OSError, InputError):  # usually the folder does not exist
            pass
        return found


class RunCommand(Struct, frozen=True):
    """The result of a command that may run twice; see explain_no_answer() for one that did not end.

    It runs in /, with ``env`` besides the login's environment.
    """

    argv: tuple[str, ...]
    timeout: float = COMMAND_TIMEOUT_S
    stdin: str = ""
    env: tuple[tuple[str, str], ...] = ()

    def to_bash(self) -> str:
        settings = [f"{name}={value}" for name, value in self.env]
        words = [f"{self.timeout:g}", self.stdin, str(len(settings)), *settings, *self.argv]
        return " ".join(["run_command", *map(quote, words)])

    def parse_answer(self, result: Result) -> Result:
        reason = result.stderr
        if result.exit_code == 124:
            reason = f"no response within {self.timeout:g} s"
        elif result.exit_code == 127 and not result.stdout:
            reason = "No such file or directory"
        return structs.replace(result, argv=list(self.argv), stderr=reason)

    def answer_here(self, transport: LocalTransport) -> Result:
        env = {**transport.env, **dict(self.env)}
        try:
            return transport.run(
                self.argv, cwd="/", env=env, timeout=self.timeout, stdin=self.stdin or None
            )
        except OutOfReach as error:
            code, reason, cause = 127, error.message, error.__cause__
            if error.maybe_done:
                code, reason = 124, f"no response within {self.timeout:g} s"
            elif isinstance(cause, OSError):
                reason = cause.strerror or reason
            return Result(list(self.argv), code, "", reason)


def explain_no_answer(result: Result) -> str:
    """Return why a command did not run to its end; "" if it did, whatever its exit code."""
    return result.stderr if result.exit_code in _NO_ANSWER and not result.stdout else ""


def parse_environ(text: str) -> dict[str, str]:
    r"""Parse the output of ``env -0``.

    >>> parse_environ("A=1\0B=x=y\0")
    {'A': '1', 'B': 'x=y'}
    """
    pairs = (line.partition("=") for line in text.split("\0") if "=" in line)
    return {name: value for name, _, value in pairs}


def _quote_path(path: str, *, expands: bool) -> str:
    return quote_profile_path(path) if expands else quote(path)


def _expand_path(path: str, env: Mapping[str, str]) -> str:
    """Fill in ~ and $NAME. Raises InputError for a variable that is not set."""
    try:
        filled = Template(path).substitute(env)
    except (KeyError, ValueError) as error:
        raise InputError(f"{path}: {error} is not set") from error
    if filled == "~" or filled.startswith("~/"):
        return env.get("HOME", "/") + filled[1:]
    return filled


# ---- over SSH ----------------------------------------------------------------------------------

# ``answer`` prints the output of a query, a mark, its exit code, its stderr, and the mark again.
# probe_path prints the letters that PathProbe.parse() reads, probe_folder the fields of a
# FolderState, each terminated by a NUL, and read_own_files names and texts.
_FUNCTIONS = r"""
exec 3>&1
answer() {
  err=$( { "$@" </dev/null; } 2>&1 >&3 ); printf '\n%s %s\n%s\n%s\n' "$mark" $? "$err" "$mark"
}
run_command() (
  cd / || exit; unset LC_ALL
  patience=$1 input=$2 count=$3; shift 3
  for ((; count > 0; count--)); do export -- "$1"; shift; done
  type -P -- "$1" >/dev/null || exit 127
  exec < <(printf %s "$input")
  if type -P timeout >/dev/null; then exec timeout "$patience" "$@"; else exec "$@"; fi
)
read_file() { [[ -f $1 ]] && head -c "$longest" -- "$1"; }
probe_path() {
  found=
  [[ -f $1 ]] && found+=f; [[ -d $1 ]] && found+=d; [[ -e $1 ]] && found+=e
  [[ -x $1 ]] && found+=x; [[ -w $1 ]] && found+=w
  if [[ -d $1 ]]; then inside=("$1"/*); ((${#inside[@]} == 0)) || found+=n; fi
  top=${1#/}; [[ -e /${top%%/*} ]] || found+='?'
  printf '%s' "$found"
}
probe_folder() {
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
  read -r device mode <<<"$(stat -L -c '%d %a' -- "$at" 2>/dev/null)"
  read -r free unit blocks files inodes \
    <<<"$(stat -f -c '%a %S %b %d %c' -- "$at" 2>/dev/null)"
  printf '%s\0' "$at" "$(cd -P -- "$at" 2>/dev/null && pwd)" "$fault" "$refusal" "$device" \
    "$mode" "$free" "$unit" "$blocks" "$files" "$inodes"
}
read_own_files() {
  cd -- "$1" 2>/dev/null || return 0
  for each in [!.]*; do
    [[ -f $each && ! -L $each && -O $each ]] || continue
    mode=$(stat -c %a -- "$each")
    (( 8#${mode:-22} & 8#22 )) && continue
    printf '%s\0' "$each"; head -c "$longest_own" -- "$each" | tr -d '\0'; printf '\0'
  done
}
"""


def query_script(queries: Sequence[Query[Any]], mark: str) -> str:
    """Return the bash script that answers queries; ``mark`` is a word that no answer contains."""
    script = f"mark={mark} longest={_LONGEST_FILE_BYTES} longest_own={_LONGEST_OWN_FILE_BYTES}\n"
    script += _FUNCTIONS
    # The functions of the script need the C locale, which the environment must not show.
    locale = "unset -f cd; LC_ALL=C; shopt -s nullglob dotglob\n"
    is_set = False
    for query in queries:
        if not is_set and not isinstance(query, LoginEnvironment):
            script, is_set = script + locale, True
        # A variable that is not set there ends only the subshell of this query.
        script += f"answer eval {quote(query.to_bash())}\n"
    return script


def parse_answers(queries: Sequence[Query[Any]], mark: str, text: str) -> Answers:
    """Parse the output of query_script(). Raises OutOfReach if it is incomplete."""
    each = re.compile(rf"(.*?)\n{mark} ([0-9]{{1,3}})\n(.*?)\n{mark}\n", re.DOTALL)
    found = [Result([], int(match[2]), match[1], match[3]) for match in each.finditer(text)]
    if len(found) < len(queries):
        raise OutOfReach("truncated response")
    pairs = zip(queries, found, strict=False)
    return Answers({query: query.parse_answer(result) for query, result in pairs})


def in_order(queries: Iterable[Query[Any]]) -> list[Query[Any]]:
    """List each query once, the login's environment first."""
    return sorted(dict.fromkeys(queries), key=lambda one: not isinstance(one, LoginEnvironment))


def _parse_folder(text: str, path: Path) -> FolderState:
    fields = text.split("\0")
    if len(fields) < 12:
        return FolderState(at=path, fault="could not be examined")
    at, real, fault, refusal = fields[:4]
    device, mode, free, unit, blocks, files, inodes = (
        int(field, 8 if number == 1 else 10)
        if re.fullmatch("[0-7]+" if number == 1 else "[0-9]{1,20}", field)
        else 0
        for number, field in enumerate(fields[4:11])
    )
    return FolderState(
        at=Path(at),
        real=real,
        fault=fault,
        refusal=refusal,
        device=device,
        is_open=mode & 0o1002 == 0o002,
        bytes=free * unit if blocks else None,
        files=files if inodes else None,
    )


# ---- on this machine ---------------------------------------------------------------------------


def _probe_folder(path: Path, *, writes: bool) -> FolderState:
    for folder in (path, *path.parents):
        try:
            info = folder.stat()
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            return FolderState(at=folder, fault=error.strerror or str(error))
        if not S_ISDIR(info.st_mode):
            return FolderState(at=folder, fault="not a folder")
        refusal = _try_to_write(folder) if writes else ""
        if not writes and not os.access(folder, os.W_OK | os.X_OK):
            refusal = "Permission denied"
        space, files = free_space(folder)
        return FolderState(
            at=folder,
            real=os.path.realpath(folder),
            refusal=refusal,
            device=info.st_dev,
            is_open=is_writable_by_others(folder),
            bytes=space,
            files=files,
        )
    return FolderState(at=path, fault="no such folder")


def _try_to_write(folder: Path) -> str:
    """Return why a folder is not writable; "" if it is.

    Mode bits do not decide (root on NFS is nobody, a disk may be read-only), so an unnamed file is
    opened, which vanishes when it is closed. Where the file system has no unnamed files (NFS,
    Lustre), a folder is made and removed.
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
