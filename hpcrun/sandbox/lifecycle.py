"""Bring a sandbox up, say how it is, take it down: a real Slurm of one user on this machine."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import msgspec
from msgspec import Struct

from hpcrun.errors import HpcrunError, InputError
from hpcrun.sandbox import config, daemons, processes
from hpcrun.sandbox import directory as place
from hpcrun.sandbox.config import Layout
from hpcrun.sandbox.shape import Shape, about, node_names, plain_shape

READY_TIMEOUT = 30.0  # seconds
CANCEL_GRACE = 3.0  # seconds that jobs have to end by themselves in ``down``


class SandboxStatus(Struct, frozen=True):
    """How a sandbox is.

    ``like``: the profile whose shape it has, "" for none; ``pids`` holds the living daemons,
    ``dead`` the names of the others.
    """

    directory: str
    slurm_conf: str
    profile: str
    nodes: int
    gpus_per_node: int
    like: str
    pids: dict[str, int]
    dead: tuple[str, ...]
    up: bool

    @property
    def about(self) -> str:
        """Its shape in few words."""
        return about(self.nodes, self.gpus_per_node, self.like)


def status(directory: Path) -> SandboxStatus | None:
    """Say how the sandbox in ``directory`` is; None when there is none.

    Raise InputError when the directory is no sandbox of this user.
    """
    layout = Layout(place.canonical(directory))
    if not place.check_owned(layout.root):
        return None
    shape = place.read_shape(layout.root)
    if shape is None:
        return None
    alive = {one.pid for one in processes.find_members(layout.root)}
    pids = {name: read_pid(layout, name) for name in config.daemon_names(shape.nodes)}
    living = {name: pid for name, pid in pids.items() if pid in alive}
    dead = tuple(name for name in pids if name not in living)
    return SandboxStatus(
        directory=str(layout.root),
        slurm_conf=str(layout.slurm_conf),
        profile=str(layout.profile),
        nodes=shape.nodes,
        gpus_per_node=shape.gpus_per_node,
        like=shape.like,
        pids=living,
        dead=dead,
        # The profile is written last, when every node is ready.
        up=not dead and layout.profile.exists(),
    )


def up(
    directory: Path, *, nodes: int = 2, gpus_per_node: int = 4, shape: Shape | None = None
) -> SandboxStatus:
    """Bring up a sandbox and return when a job would start at once.

    One that is up already is left as it is; what is left of a broken one is removed first.
    ``shape`` counts instead of ``nodes`` and ``gpus_per_node``, where it is given.
    Raise InputError when one of another shape is up or the directory is unusable, and
    HpcrunError when Slurm is not installed or a daemon does not start: nothing is left then.
    """
    shape = shape or plain_shape(nodes, gpus_per_node)
    layout = Layout(place.canonical(directory))
    config.check_directory(layout.root)
    daemons.check_user(os.geteuid())
    environ = daemons.clean_environment(os.environ, layout)
    programs = daemons.find_programs(environ["PATH"])
    while True:
        place.create(layout.root)
        # A `down` that held the directory has removed it: make it again.
        with contextlib.suppress(FileNotFoundError), place.locked(layout.root):
            found = status(layout.root)
            if found and found.up:
                return same_shape(found, shape)
            refuse_from_inside(layout)
            try:
                processes.end_all(layout.root, read_pid(layout, "keeper"))
                place.empty(layout.root)
                return build(layout, programs, environ, shape)
            except OSError as error:
                remove(layout)
                raise HpcrunError(f"{error.filename or layout.root}: {error.strerror}") from error
            except BaseException:
                remove(layout)
                raise


def same_shape(found: SandboxStatus, asked: Shape) -> SandboxStatus:
    """Return ``found``; raise InputError when it has another shape than the one asked for."""
    shape = place.read_shape(Path(found.directory))
    if shape == asked:
        return found
    is_up = shape.about() if shape else "another shape"
    again = ", as that file is now" if shape and shape.about() == asked.about() else ""
    raise InputError(
        f"{found.directory}: a sandbox of {is_up} is up; {asked.about()} were asked for{again}",
        fix="end it and its jobs first: hpcrun sandbox down",
    )


def build(
    layout: Layout, programs: dict[str, str], environ: dict[str, str], shape: Shape
) -> SandboxStatus:
    """Start everything in the empty directory and wait until every node is idle."""
    layout.shape.write_bytes(msgspec.json.encode(shape))
    version = daemons.slurm_version(programs["slurmctld"], environ)
    port = daemons.write_files(layout, shape, version)
    daemons.start(layout, programs, environ, shape.nodes, port)
    names = node_names(shape.nodes)
    unready = names

    def ready() -> bool:
        nonlocal unready
        unready = daemons.unready(daemons.node_states(programs["sinfo"], environ), names)
        if unready and (now := status(layout.root)) and now.dead:
            died = now.dead[0]
            raise HpcrunError(f"{died} died{daemons.log_tail(layout, died)}")
        return not unready

    if not processes.wait_for(ready, READY_TIMEOUT):
        late = unready[0].split()[0]
        raise HpcrunError(
            f"after {READY_TIMEOUT:.0f} s these nodes are not ready: {', '.join(unready)};"
            f" {late}{daemons.log_tail(layout, late)}"
        )
    layout.profile.write_text(config.cluster_profile(layout, shape), encoding="utf-8")
    now = status(layout.root)
    if now is None or not now.up:
        raise HpcrunError(f"{layout.root}: the sandbox broke down while it came up")
    return now


def down(directory: Path) -> bool:
    """End the sandbox in ``directory`` with its jobs, and remove it; say whether there was one.

    Jobs are cancelled by Slurm first and have a few seconds to write their last words.
    Raise InputError when the directory is no sandbox of this user or the caller is one of its
    jobs, and HpcrunError when a process or a file cannot be removed.
    """
    layout = Layout(place.canonical(directory))
    existed = place.check_owned(layout.root)
    refuse_from_inside(layout)
    if not existed:
        left = bool(processes.find_members(layout.root))
        processes.end_all(layout.root, None)
        return left
    try:
        with place.locked(layout.root):
            cancel_jobs(layout)
            remove(layout)
    except FileNotFoundError:  # another `down` was quicker
        return False
    return True


def cancel_jobs(layout: Layout) -> None:
    """Let Slurm end the running jobs, if it can and as far as it does within CANCEL_GRACE."""

    def no_step_left() -> bool:
        return not any(
            one.name.startswith("slurmstepd") for one in processes.find_members(layout.root)
        )

    if no_step_left() or not (now := status(layout.root)) or "slurmctld" in now.dead:
        return
    environ = daemons.clean_environment(os.environ, layout)
    with contextlib.suppress(HpcrunError):  # Slurm's packages are gone, its daemons are not
        daemons.cancel_all(daemons.find_programs(environ["PATH"])["scancel"], environ)
        processes.wait_for(no_step_left, CANCEL_GRACE)


def remove(layout: Layout) -> None:
    """Kill what runs and remove what lies there."""
    processes.end_all(layout.root, read_pid(layout, "keeper"))
    place.empty(layout.root)
    layout.root.rmdir()


def refuse_from_inside(layout: Layout) -> None:
    """Raise InputError when the caller would be among the processes that it ends."""
    if any(one.pid == os.getpid() for one in processes.find_members(layout.root)):
        raise InputError(
            f"this runs in a job of the sandbox {layout.root}, which it would end",
            fix="run it from a shell outside the sandbox's jobs",
        )


def read_pid(layout: Layout, daemon: str) -> int | None:
    """Return the pid that a daemon wrote, whether it still lives or not."""
    try:
        return int(layout.pid(daemon).read_text())
    except (OSError, ValueError):
        return None
