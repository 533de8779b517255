"""Find the origin of a submission: user, project, command line, and the commit of the code."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path

from hpcrun.assets import user_name
from hpcrun.context import Context
from hpcrun.plan import Provenance
from hpcrun.runs import RunFolder, SweepFolder, git_command, parse_sweep_id, read_plan, runs_of
from hpcrun.secrets import Masker

# git reads the state of every tracked file, which takes long on a slow network file system.
_GIT_TIMEOUT_S = 20.0


def find_provenance(
    context: Context, secrets: Sequence[str] = (), *, project: str | None = None
) -> Provenance:
    """Find the origin of a run that is submitted now.

    Args:
        secrets: The names of the job's secrets, whose values are masked in the command line.
        project: The directory of the code, if it is not the context's project.
    """
    values = [
        context.environ[name].encode("utf-8", "surrogateescape")
        for name in secrets
        if name in context.environ
    ]
    folder = project or str(context.project)
    if context.session.git_state is None:
        earlier = _read_provenance_of(context.code) if context.code is not None else None
        context.session.git_state = (
            read_git_state(Path(folder))
            if earlier is None
            else (earlier.git_commit, earlier.git_dirty)
        )
    commit, dirty = context.session.git_state
    return Provenance(
        user=user_name(context.environ),
        project=folder,
        command=Masker(names=secrets, values=values).text(shlex.join(context.command)),
        git_commit=commit,
        git_dirty=dirty,
    )


def _read_provenance_of(code: Path) -> Provenance:
    """Read the origin of the run, or sweep, that has this copy of the code."""
    folder = code.parent
    is_sweep = parse_sweep_id(folder.name) is not None
    plan = read_plan(runs_of(SweepFolder(folder) if is_sweep else RunFolder(folder))[0])
    return plan.provenance if plan is not None else Provenance()


def read_git_state(folder: Path) -> tuple[str | None, bool | None]:
    """Return the commit of a checkout, and whether tracked files differ from it.

    Both are None outside a checkout, or if git does not answer in time. ``git status`` is not used,
    because it runs filters that the checkout configures.
    """
    try:
        commit = _run_git(folder, "rev-parse", "--verify", "-q", "HEAD").decode().strip()
        if not commit:
            return None, None
        words = ("diff-index", "--raw", "-z", "--abbrev=64", "--ignore-submodules=dirty", commit)
        changes = parse_diff_index(_run_git(folder, *words))
        return commit, changes is None or bool(changes and _is_changed(folder, changes))
    except (OSError, subprocess.SubprocessError):
        return None, None


def parse_diff_index(output: bytes) -> dict[bytes, bytes] | None:
    """Parse the output of ``git diff-index --raw -z``.

    Returns:
        The object ids in the commit of files that differ at most in their content, by path; None if
        the output proves a change.

    >>> zero, line = b"0" * 40, b":100644 100644 1a2b %s M\\0train.py\\0"
    >>> parse_diff_index(line % zero), parse_diff_index(line % b"3c4d")
    ({b'train.py': b'1a2b'}, None)
    """
    found = {}
    words = output.split(b"\0")[:-1]
    for head, path in zip(words[::2], words[1::2], strict=True):
        mode, mode_now, object_id, object_now, _ = head.lstrip(b":").split()
        # git gives no id for a file whose time differs from that in the index.
        if mode != mode_now or object_now.strip(b"0") or mode == b"160000" or b"\n" in path:
            return None
        found[path] = object_id
    return found


def _is_changed(folder: Path, object_ids: dict[bytes, bytes]) -> bool:
    """Return True if the content of a file differs from the object in the commit."""
    top = Path(os.fsdecode(_run_git(folder, "rev-parse", "--show-toplevel").rstrip(b"\n")))
    paths = b"\n".join(object_ids) + b"\n"
    now = _run_git(top, "hash-object", "--no-filters", "--stdin-paths", given=paths)
    return now.split() != list(object_ids.values())


def _run_git(folder: Path, *words: str, given: bytes = b"") -> bytes:
    """Run git and return its output.

    Raises:
        CalledProcessError: git failed, for example outside a checkout.
        TimeoutExpired: It did not answer in time.
    """
    return subprocess.run(
        git_command(folder, *words),
        input=given,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        timeout=_GIT_TIMEOUT_S,
        check=True,
    ).stdout
