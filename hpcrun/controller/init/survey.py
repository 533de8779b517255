"""What Slurm reports of a cluster, and what this machine shows of it."""

from __future__ import annotations

import contextlib
import grp
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from msgspec import Struct

from hpcrun.assets import home_dir
from hpcrun.controller.checks import places
from hpcrun.errors import OutOfReach
from hpcrun.ownership import name_of_user
from hpcrun.plan.site import Answers, first_host
from hpcrun.scheduler import ask
from hpcrun.slurm import cluster
from hpcrun.slurm.reasons import has_no_configuration
from hpcrun.spec.job import Fabric
from hpcrun.transport import Transport

T = TypeVar("T")

# Kinds of nodes that are looked at one by one: few clusters have more than ten.
_MOST_KINDS = 64
# File systems that nodes share, by the type in the mount table.
_SHARED = re.compile(
    r"nfs4?|lustre|lustre_lite|gpfs|beegfs|fhgfs|ceph|wekafs|panfs|pvfs2|orangefs|dvs|cifs|smb3?"
    r"|afs|ocfs2|gfs2|9p|virtiofs|daos|quobyte|fuse\.(?:ceph|daos|dfuse|juicefs|glusterfs|sshfs|"
    r"beegfs|gcsfuse|quobyte|weka|moosefs|s3fs|goofys|lizardfs)\S*|glusterfs"
)
_SCRATCH_VARIABLES = (
    "SCRATCH", "PSCRATCH", "CSCRATCH", "SCRATCHDIR", "SCRATCH_DIR", "SCRATCH_PATH",
    "GLOBALSCRATCH", "GSCRATCH", "VSC_SCRATCH", "CCFRSCRATCH", "WORKDIR", "WORK", "WRKDIR",
    "MYSCRATCH", "FASTDIR", "PROJECT_SCRATCH",
)  # fmt: skip
_SCRATCH_PLACES = (
    "/scratch/$USER", "/scratch/users/$USER", "/global/scratch/users/$USER",
    "/lustre/$USER", "/lustre/scratch/$USER", "/lustre/users/$USER", "/gpfs/scratch/$USER",
    "/gpfs/$USER", "/beegfs/$USER", "/weka/$USER", "/mnt/scratch/$USER", "/mnt/lustre/$USER",
    "/fsx/$USER", "/fsx", "/nobackup/$USER", "/data/$USER", "/shared/$USER",
    "/network/scratch/$USER",
)  # fmt: skip
_PYTHON_SECONDS = 30
_HAS_TORCH = "import importlib.util as u; print(int(u.find_spec('torch') is not None))"


def survey(transport: Transport) -> Answers:
    """Ask Slurm for everything that a profile has.

    Raises OutOfReach where slurmctld does not answer, or the answer is not Slurm's.
    """
    config = _config(transport)
    partitions = _rows(transport, cluster.SHOW_PARTITIONS, cluster.parse_partitions)
    nodes = _rows(transport, cluster.SINFO, cluster.parse_sinfo)
    associations, qos = _accounting(transport, config)
    groups = []
    for number in {os.getegid(), *os.getgroups()}:
        with contextlib.suppress(KeyError):
            groups.append(grp.getgrgid(number).gr_name)
    return Answers(
        config=config,
        nodes=nodes,
        partitions=partitions,
        limits=_limits(transport, nodes),
        associations=associations,
        qos=qos,
        groups=sorted(groups),
        is_root=os.geteuid() == 0,
    )


def _config(transport: Transport) -> cluster.SlurmConfig:
    try:
        text = _answer(transport, cluster.SHOW_CONFIG)
    except OutOfReach as error:
        if has_no_configuration(error.message):
            raise OutOfReach(
                f"Slurm's commands are here, and know no cluster: {error.message}",
                fix="call it on a login node, or set SLURM_CONF; without a cluster: "
                "hpcrun sandbox up",
            ) from error
        raise
    config = cluster.parse_config(text)
    if not config.version and not config.cluster:
        raise _odd(cluster.SHOW_CONFIG, text)
    return config


def _rows(transport: Transport, argv: Sequence[str], parse: Callable[[str], list[T]]) -> list[T]:
    text = _answer(transport, argv)
    rows = parse(text)
    # "No partitions in the system" is an answer too.
    if not rows and text.strip() and not text.startswith("No partition"):
        raise _odd(argv, text)
    return rows


def _limits(transport: Transport, nodes: list[cluster.NodeRow]) -> dict[str, cluster.NodeLimits]:
    """Ask what Slurm reserves on one node of each kind; without an answer that is nothing."""
    kinds: dict[tuple[int, int, str], list[str]] = {}
    for row in nodes:
        kind = (row.cpus, row.memory, row.gres)
        kinds.setdefault(kind, []).extend([first_host(row.node_list)] if row.nodes else [])
    names = [hosts[0] for hosts in kinds.values() if hosts and hosts[0]][:_MOST_KINDS]
    if not names:
        return {}
    text = ask(transport, cluster.show_nodes_argv(names))
    found = {limits.name: limits for limits in cluster.parse_nodes(_clean(text or ""))}
    # What holds for one node of a kind holds for all of them.
    return {
        host: found[hosts[0]] for hosts in kinds.values() for host in hosts if hosts[0] in found
    }


def _accounting(
    transport: Transport, config: cluster.SlurmConfig
) -> tuple[list[cluster.Association] | None, list[cluster.Qos] | None]:
    """Ask slurmdbd; None where there is none or it does not answer: limits are then not known."""
    if not config.has_accounting:
        return None, None
    with contextlib.suppress(OutOfReach):
        listed = ask(
            transport, cluster.associations_argv(name_of_user(os.geteuid()), config.cluster)
        )
        qos = ask(transport, cluster.SHOW_QOS)
        return (
            None if listed is None else cluster.parse_associations(_clean(listed), config.cluster),
            None if qos is None else cluster.parse_qos(_clean(qos)),
        )
    return None, None


def _answer(transport: Transport, argv: Sequence[str]) -> str:
    text = ask(transport, argv)
    if text is None:
        raise OutOfReach(
            f"{' '.join(argv)}: Slurm does not answer", fix="does the command work in your shell?"
        )
    return _clean(text)


def _clean(text: str) -> str:
    """Replace what is not text in an answer: names end up on terminals and in files."""
    return "".join(char if char.isprintable() or char in "\n\t" else "?" for char in text)


def _odd(argv: Sequence[str], text: str) -> OutOfReach:
    first = text.strip().splitlines()[0][:60] if text.strip() else ""
    return OutOfReach(
        f"{' '.join(argv)}: the answer is not Slurm's: {first!r}",
        fix="does something else answer by that name? Try the command in your shell",
    )


class Folder(Struct, frozen=True, kw_only=True):
    """A folder for runs: how a profile spells it, where it is, on what kind of file system.

    ``shared`` None: the file system's type does not show it. ``free`` is in bytes.
    """

    text: str
    path: str
    file_system: str
    shared: bool | None
    free: int


class Python(Struct, frozen=True, kw_only=True):
    """A Python that could train: the key and value of ``setup``, or of the profile's python."""

    key: str
    value: str
    path: str
    has_torch: bool


# ---- folders -----------------------------------------------------------------------------------


def scratch_folders(environ: Mapping[str, str]) -> list[Folder]:
    """Find writable places for runs, best first: scratch that nodes share, home, the rest."""
    user = environ.get("USER", "")
    texts = [f"${name}" for name in _SCRATCH_VARIABLES if environ.get(name, "").startswith("/")]
    texts += [place for place in _SCRATCH_PLACES if user or "$USER" not in place]
    mounts = places.read_mounts()
    found: list[Folder] = []
    for text in (*texts, "~"):
        place = text.replace("$USER", user)
        place = environ[text[1:]] if text.startswith("$") else place
        place = home_dir(environ) if text == "~" else place
        folder = _folder(text, Path(place), mounts)
        if folder is not None and folder.path not in [other.path for other in found]:
            found.append(folder)
    # sort() keeps the order of those that are alike: variables first, home last.
    return sorted(found, key=lambda folder: {True: 0, None: 1, False: 2}[folder.shared])


def _folder(text: str, path: Path, mounts: Sequence[places.Mount]) -> Folder | None:
    try:
        if not path.is_dir() or not os.access(path, os.W_OK | os.X_OK):
            return None
        real = os.path.realpath(path)
        room = os.statvfs(real)
    except OSError:
        return None
    mount = places.mount_of(real, mounts)
    kind = mount.type if mount is not None else ""
    is_local = kind in places.LOCAL_TYPES | places.MEMORY_TYPES
    shared = True if _SHARED.fullmatch(kind) else False if is_local else None
    return Folder(
        text=text, path=real, file_system=kind, shared=shared, free=room.f_bavail * room.f_frsize
    )


# ---- fabric ------------------------------------------------------------------------------------


def fabric_guess(root: Path = Path("/")) -> tuple[Fabric, str] | None:
    """Guess the fabric by this machine's devices: the fabric and its sign; None: no sign."""
    names = [path.name for path in _listed(root / "sys/class/net")]
    cxi = [*_listed(root / "sys/class/cxi"), *_listed(root / "sys/class/cxi_user")]
    slingshot = next((name for name in names if name.startswith("hsn")), "")
    if cxi or slingshot:
        return "slingshot", cxi[0].name if cxi else slingshot
    devices = _listed(root / "sys/class/infiniband")
    efa = next((path for path in devices if path.name.startswith(("efa", "rdmap"))), None)
    if efa is not None:
        return "efa", efa.name
    for device in devices:
        for port in _listed(device / "ports"):
            with contextlib.suppress(OSError):
                layer = (port / "link_layer").read_text().strip()
                if layer in ("InfiniBand", "Ethernet"):
                    return ("infiniband" if layer == "InfiniBand" else "roce"), device.name
    if (root / "opt/amazon/efa").is_dir():
        return "efa", "/opt/amazon/efa"
    return None


def _listed(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


# ---- Python ------------------------------------------------------------------------------------


def pythons(project: Path, environ: Mapping[str, str]) -> list[Python]:
    """Find the Pythons that could train: those with torch first, the project's own first."""
    found: dict[str, Python] = {}
    for key, value, path in _candidates(project, environ):
        if path.is_file() and os.access(path, os.X_OK) and str(path) not in found:
            argv = [str(path), "-c", _HAS_TORCH]
            has_torch = places.answer_of(argv, environ, _PYTHON_SECONDS)[1].strip() == "1"
            found[str(path)] = Python(key=key, value=value, path=str(path), has_torch=has_torch)
    return sorted(found.values(), key=lambda python: not python.has_torch)


def _candidates(project: Path, environ: Mapping[str, str]) -> Iterator[tuple[str, str, Path]]:
    for name in (".venv", "venv", "env"):
        if (project / name / "pyvenv.cfg").is_file():
            yield "venv", name, project / name / "bin/python"
    if environ.get("VIRTUAL_ENV"):
        yield "venv", environ["VIRTUAL_ENV"], Path(environ["VIRTUAL_ENV"]) / "bin/python"
    if environ.get("CONDA_PREFIX"):
        name = environ.get("CONDA_DEFAULT_ENV") or environ["CONDA_PREFIX"]
        yield "conda", name, Path(environ["CONDA_PREFIX"]) / "bin/python"
    yield "python", sys.executable, Path(sys.executable)
    system = shutil.which("python3", path=environ.get("PATH"))
    if system:
        yield "python", system, Path(system)
