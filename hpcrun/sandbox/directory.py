"""The directory of a sandbox: its files, the check of its owner, and its lock."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from hpcrun.assets import home_dir
from hpcrun.errors import HpcrunError, InputError
from hpcrun.ownership import describe_insecure_path, is_own

MAX_NODES = 64
# sun_path in <sys/un.h> holds 108 bytes, including the final NUL.
MAX_SOCKET_PATH = 107
# The longest socket path of a sandbox is that of slurmstepd: SPOOL/NODE_JOBID.STEPID.
LONGEST_SOCKET = f"/spool/node{MAX_NODES}/node{MAX_NODES}_67043328.4294967294"
MAX_DIRECTORY = MAX_SOCKET_PATH - len(LONGEST_SOCKET)


class SandboxFiles:
    """The paths of all files of the sandbox in ``root``."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.folders = [root / name for name in ("munge", "state", "spool", "log", "run", "gpu")]
        self.shape = root / "sandbox.json"
        self.profile = root / "cluster.yaml"
        self.slurm_conf = root / "slurm.conf"
        self.gres_conf = root / "gres.conf"
        self.cgroup_conf = root / "cgroup.conf"
        self.munge_key = root / "munge" / "key"
        self.munge_socket = root / "munge" / "socket"
        self.munge_seed = root / "munge" / "seed"

    def gpu(self, index: int) -> Path:
        return self.root / "gpu" / f"gpu{index}"

    def pid(self, daemon: str) -> Path:
        return self.root / "run" / f"{daemon}.pid"

    def log(self, daemon: str) -> Path:
        return self.root / "log" / f"{daemon}.log"

    def output(self, daemon: str) -> Path:
        """Return the file for a daemon's output before it has opened its log."""
        return self.root / "log" / f"{daemon}.out"


def sandbox_dir(environ: Mapping[str, str], uid: int) -> Path:
    """Return the directory of this user's sandbox: HPCRUN_SANDBOX_DIR, or a default directory.

    Of the default directories, the one with a sandbox is returned, or else the first. Raise
    InputError if Slurm cannot work in HPCRUN_SANDBOX_DIR.

    >>> sandbox_dir({"HPCRUN_SANDBOX_DIR": "/tmp/mine"}, 1000)
    PosixPath('/tmp/mine')
    """
    if named := environ.get("HPCRUN_SANDBOX_DIR"):
        directory = resolve_parents(Path(named))
        check_directory(directory)
        return directory
    places = list(_candidate_folders(environ, uid))
    return next((place for place in places if _is_sandbox(place)), places[0])


def _candidate_folders(environ: Mapping[str, str], uid: int) -> Iterator[Path]:
    """Yield the default directories: those that only the user can create, and finally /tmp.

    The user's runtime directory is local to one machine, like a sandbox, whereas a home may be
    shared. tempfile.gettempdir() is not used, because TMPDIR is long in a batch job and differs
    between jobs.
    """
    runtime, home = environ.get("XDG_RUNTIME_DIR"), Path(home_dir(environ))
    below_home = home / ".cache" / "hpcrun" / f"sandbox-{os.uname().nodename.partition('.')[0]}"
    for folder in (runtime and Path(runtime), Path(f"/run/user/{uid}"), home):
        with contextlib.suppress(OSError, InputError):
            if folder and folder.stat().st_uid == uid and not describe_insecure_path(folder):
                place = resolve_parents(below_home if folder == home else folder / "hpcrun-sandbox")
                check_directory(place)  # the path of a home may be too long
                yield place
    yield Path(f"/tmp/hpcrun-sandbox-{uid}")


def _is_sandbox(place: Path) -> bool:
    with contextlib.suppress(OSError):
        return is_own(place.lstat()) and SandboxFiles(place).shape.exists()
    return False


def resolve_parents(directory: Path) -> Path:
    """Make a path absolute and resolve its parents; ``directory`` itself may not be a link."""
    return directory.parent.resolve() / directory.name


def check_directory(directory: Path) -> None:
    """Raise InputError for a path that slurm.conf, which has no quoting, cannot contain.

    >>> check_directory(Path("/run/user/1000/hpcrun-sandbox"))
    """
    fix = "set HPCRUN_SANDBOX_DIR to a short plain path, for example /tmp/my-sandbox"
    text = str(directory)
    odd = sorted(set(re.findall(r"[^A-Za-z0-9._/+@~-]", text)))
    if odd:
        shown = ", ".join("a blank" if char == " " else repr(char) for char in odd)
        raise InputError(f"{text}: Slurm's configuration cannot carry {shown} in a path", fix=fix)
    if len(text) > MAX_DIRECTORY:
        raise InputError(
            f"{text}: {len(text)} bytes; {MAX_DIRECTORY} is the most, because the sandbox's"
            f" sockets lie below it and the kernel allows {MAX_SOCKET_PATH} bytes for a socket",
            fix=fix,
        )


def check_owned(directory: Path) -> bool:
    """Return True if the directory exists; raise InputError if it cannot be this user's sandbox."""
    fix = "set HPCRUN_SANDBOX_DIR to a path that does not exist yet"
    try:
        found = directory.lstat()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise InputError(f"{directory}: {error.strerror}", fix=fix) from error
    if stat.S_ISLNK(found.st_mode):
        raise InputError(f"{directory} is a symbolic link; it is not followed", fix=fix)
    if not stat.S_ISDIR(found.st_mode):
        raise InputError(f"{directory} is not a directory", fix=fix)
    if found.st_uid != os.geteuid():
        raise InputError(f"{directory} belongs to uid {found.st_uid}, not to you", fix=fix)
    if any(directory.iterdir()) and not SandboxFiles(directory).shape.exists():
        raise InputError(f"{directory} has files in it and is not a sandbox", fix=fix)
    return True


def create_folder(directory: Path) -> None:
    """Create the directory, accessible only to the user; raise InputError if that is impossible."""
    if check_owned(directory):
        directory.chmod(0o700)
    else:
        try:
            directory.parent.mkdir(parents=True, exist_ok=True)
            directory.mkdir(mode=0o700)
        except FileExistsError:
            check_owned(directory)
        except OSError as error:
            raise InputError(
                f"{directory}: {error.strerror}",
                fix="set HPCRUN_SANDBOX_DIR to a path you can write",
            ) from error
    with contextlib.suppress(FileNotFoundError):  # a concurrent `down` has removed it
        if why := describe_insecure_path(directory):
            with contextlib.suppress(OSError):
                directory.rmdir()
            raise InputError(
                f"{directory}: {why}, and could make another sandbox of it",
                fix="set HPCRUN_SANDBOX_DIR to a path that nobody else can change",
            )


@contextmanager
def lock_folder(directory: Path) -> Iterator[None]:
    """Lock ``directory`` against a concurrent up or down.

    Raises:
        FileNotFoundError: The directory no longer exists.
    """
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
    while True:
        handle = os.open(directory, flags)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            if os.path.samestat(os.fstat(handle), directory.lstat()):
                yield
                return
        finally:
            os.close(handle)


def remove_contents(directory: Path) -> None:
    """Remove the contents of ``directory``, and last the record that marks it as a sandbox.

    Raises:
        HpcrunError: A file cannot be removed.
    """
    record = SandboxFiles(directory).shape
    try:
        for entry in directory.iterdir():
            if entry.is_dir() and not entry.is_symlink():
                import shutil  # deferred: it imports the compression libraries

                shutil.rmtree(entry)
            elif entry != record:
                entry.unlink()
        record.unlink(missing_ok=True)
    except OSError as error:
        raise HpcrunError(f"{error.filename}: cannot be removed: {error.strerror}") from error
