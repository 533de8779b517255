"""What goes wrong between a laptop and its cluster: a real sshd, a real fault, a clear message."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hpcrun.transport import connection
from tests.cli.calling import Caller, Done
from tests.needs import require_root
from tests.slurm_answers import squeue_row
from tests.transport.link import Link
from tests.transport.sshd import Laptop, Sshd, free_port, servers
from tests.transport.test_login import askers

# Slurm, as far as these tests need one: a job for each sbatch, which goes on until it is told else.
SBATCH = """\
[[ $1 != --version ]] || { echo slurm 24.11.5; exit; }
exec 9>>"$HOME/lock"; flock 9; echo "$PWD" >>"$HOME/queue"; wc -l <"$HOME/queue"
"""
SQUEUE = """\
[[ $* == *--noheader* ]] || echo JOBID
number=0 state=RUNNING
[[ ! -f $HOME/state ]] || state=$(<"$HOME/state")
[[ ! -f $HOME/queue ]] || while read -r folder; do
  row=${ROW//@ID@/$((++number))}; row=${row//@STATE@/$state}
  printf '%s\\n' "${row//@DIR@/$folder}"
done <"$HOME/queue"
"""
JOB = "command: [bash, say.sh]\nresources: {gpus_per_node: 0}\n"
LOG = "logs/0/rank-0.log"
# A file system of its own below a folder, for what follows.
MOUNT = 'mount -t tmpfs -o "$1" none "$2" && shift 2 && exec "$@"'


@dataclass
class Desk:
    """A project on a laptop; the cluster behind ssh has a home of its own."""

    hpcrun: Caller
    laptop: Laptop
    home: Path  # there

    @property
    def server(self) -> Sshd:
        return self.laptop.servers[0]

    @property
    def state(self) -> Path:
        """What hpcrun keeps on the laptop."""
        return self.laptop.home / ".local/state/hpcrun"

    def queue(self) -> list[str]:
        """The folders of the jobs that Slurm has."""
        queue = self.home / "queue"
        return queue.read_text().splitlines() if queue.exists() else []

    def submit(self) -> Path:
        """Submit; return the run's folder there."""
        done = self.hpcrun("submit", "job.yaml", "--json")
        assert done.code == 0, done
        run = Path(done.json["run_dir"])
        assert self.queue()[-1] == str(run)
        return run

    def begin(self, run: Path) -> Path:
        """Let a run begin; return its log there."""
        attempt = run / "attempts/0"
        attempt.mkdir(parents=True)
        (attempt / "begin.json").write_text(begin_record(time.time()))
        (run / LOG).parent.mkdir(parents=True)
        (run / LOG).write_text("step 1 loss 2.5\n")
        return run / LOG

    def end(self, run: Path) -> None:
        now = time.time()
        end = {"attempt": 0, "job_id": "1", "exit_code": 0, "signal": None, "stopped_by": None}
        end |= {"first_failure": None, "begun_at": now, "ended_at": now}
        (run / "attempts/0/end.json").write_text(json.dumps(end))
        (self.home / "state").write_text("COMPLETED")

    def on_tmpfs(self, options: str, *words: str) -> Done:
        """Call hpcrun with a file system of its own for what it keeps on the laptop."""
        self.state.mkdir(parents=True, exist_ok=True)
        argv = ["unshare", "-m", "bash", "-c", MOUNT, "bash", options, str(self.state)]
        done = subprocess.run(
            [*argv, sys.executable, "-m", "hpcrun", *words],
            cwd=self.hpcrun.project,
            env=self.hpcrun.environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        return Done(words, done.returncode, done.stdout, done.stderr)

    def slow(self, delay: float) -> Link:
        """Put a link before the server."""
        link = Link(self.server.port, delay=delay)
        name, key = f"[127.0.0.1]:{link.port}", self.server.host_key
        (self.laptop.ssh / "known_hosts").write_text(f"{name} {key}\n")
        config = f"Host far\n  HostName 127.0.0.1\n  Port {link.port}\n{self.laptop.usual()}"
        (self.laptop.ssh / "config").write_text(config)
        return link

    def is_untouched(self) -> bool:
        """Whether no run is left, neither here nor there, nor a part of one."""
        here = self.state.glob("*/runs/*-*")
        there = self.home.glob("runs/*-*")
        return not self.queue() and not [*here] and not [*there]


def begin_record(at: float) -> str:
    record = {"attempt": 0, "job_id": "1", "host": "n1", "pid": 1, "nodes": "n1", "begun_at": at}
    return json.dumps(record)


@pytest.fixture
def desk(
    tmp_path: Path, clean_environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Desk]:
    home, slurm = tmp_path / "far home", tmp_path / "slurm"
    for folder in (home, slurm):
        folder.mkdir()
    row = squeue_row("@ID@", "@STATE@", A="@ID@", Z="@DIR@").rstrip("\n")
    for name, text in (
        ("sbatch", SBATCH),
        ("squeue", f"ROW={shlex.quote(row)}\n{SQUEUE}"),
        ("sacct", "exit 1"),
    ):
        (slurm / name).write_text(f"#!/bin/bash\n{text}\n")
        (slurm / name).chmod(0o755)
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    with servers(tmp_path, far=[f'SetEnv "HOME={home}"']) as laptop:
        hpcrun = Caller(tmp_path, clean_environ)
        path = f"{laptop.env['PATH']}:{hpcrun.environ['PATH']}"
        hpcrun.environ |= laptop.env | {"PATH": path}
        hpcrun.write("hpcrun.yaml", f"host: far\nruns_dir: ~/runs\nslurm_path: {slurm}\n")
        hpcrun.write("job.yaml", JOB)
        hpcrun.write("say.sh", "true\n")
        yield Desk(hpcrun, laptop, home)


# ------------------------------------------------------------------ what the user wrote is wrong


def unknown_host(desk: Desk) -> None:
    desk.laptop.configure(desk.laptop.usual() + "Host far\n  HostName no-such-host.invalid\n")


def wrong_port(desk: Desk) -> None:
    desk.laptop.configure(f"Host far\n  Port {free_port()}\n{desk.laptop.usual()}")


def wrong_key_path(desk: Desk) -> None:
    text = (desk.laptop.ssh / "config").read_text()
    (desk.laptop.ssh / "config").write_text(text.replace("/id\n", "/no-such-key\n"))


def malformed_config(desk: Desk) -> None:
    desk.laptop.configure(desk.laptop.usual() + "Host far\n  Porrt 22\n")


def key_is_refused(desk: Desk) -> None:
    desk.laptop.make_key("other").replace(desk.laptop.ssh / "id")
    (desk.server.folder / "authorized_keys").write_text("")


def changed_host_key(desk: Desk) -> None:
    other = (desk.laptop.ssh / "id.pub").read_text()
    (desk.laptop.ssh / "known_hosts").write_text(f"[127.0.0.1]:{desk.server.port} {other}")


def unknown_host_key(desk: Desk) -> None:
    (desk.laptop.ssh / "known_hosts").write_text("")


@pytest.mark.parametrize("way", ["paramiko", pytest.param("openssh", marks=pytest.mark.thorough)])
@pytest.mark.parametrize(
    ("mistake", "message", "fix"),
    [
        (unknown_host, "no-such-host.invalid", "VPN"),
        pytest.param(
            wrong_port, "Connection refused", "does ssh far work", marks=pytest.mark.thorough
        ),
        (wrong_key_path, "not let in", "try ssh far"),
        (malformed_config, "Bad configuration option: porrt", "ssh"),
        pytest.param(
            key_is_refused, "not let in", "nothing is tried again", marks=pytest.mark.thorough
        ),
        pytest.param(
            changed_host_key, "has changed: it is now ", "ssh-keygen -R", marks=pytest.mark.thorough
        ),
        pytest.param(unknown_host_key, "is not known", "ssh far once", marks=pytest.mark.thorough),
    ],
)
def test_a_mistake_of_the_users(desk: Desk, mistake: Any, message: str, fix: str, way: str) -> None:
    """It is one error with a fix, and nothing is half done; put right, all goes on."""
    kept = {path: path.read_bytes() for path in desk.laptop.ssh.iterdir()}
    if way == "openssh":
        profile = desk.hpcrun.project / "hpcrun.yaml"
        profile.write_text(profile.read_text() + "ssh: openssh\n")
    mistake(desk)
    for words in (("submit", "job.yaml"), ("status",), ("logs", "1")):
        done = desk.hpcrun(*words)
        assert done.code == 4 and message in done.err and fix in done.err, done
        assert done.err.count("error: ") <= 1 and "Traceback" not in done.err, done
        assert desk.is_untouched()
    for path, data in kept.items():
        path.write_bytes(data)
    desk.submit()


# ------------------------------------------------------------------ no room, no right to write


def inside(desk: Desk, options: str) -> None:
    """Give the cluster's home a file system of its own."""
    desk.server.stop()
    desk.server.inside = ["unshare", "-m", "bash", "-c", MOUNT, "bash", options, str(desk.home)]
    desk.server.start()


def far_files(desk: Desk) -> list[str]:
    """List the files below the cluster's home, which this side does not see."""
    assert desk.server.process is not None
    argv = ["nsenter", "-m", f"--target={desk.server.process.pid}"]
    find = ["find", str(desk.home), "-type", "f", "-printf", "%P\n"]
    return subprocess.run([*argv, *find], capture_output=True, text=True, check=True).stdout.split()


def test_a_full_disk_there(desk: Desk) -> None:
    require_root()
    inside(desk, "size=1m")
    (desk.hpcrun.project / "big.bin").write_bytes(os.urandom(1_200_000))
    done = desk.hpcrun("submit", "job.yaml")
    assert done.code in (1, 2) and "No space left on device" in done.err, done
    assert "runs_dir" in done.err and done.err.count("error: ") == 1
    assert far_files(desk) == [] and desk.is_untouched()
    (desk.hpcrun.project / "big.bin").unlink()
    assert desk.hpcrun("submit", "job.yaml").code == 0
    assert "queue" in far_files(desk)


def test_a_disk_there_that_becomes_full_as_sbatch_answers(desk: Desk) -> None:
    """Whatever cannot be written then: the job is there once, and the run is not taken away."""
    require_root()
    inside(desk, "size=1m")
    sbatch = desk.home.parent / "slurm" / "sbatch"
    fill = 'head -c 2000000 /dev/zero >"$HOME/full" 2>/dev/null; '
    sbatch.write_text(sbatch.read_text().replace("flock 9", f"{fill}flock 9"))
    sbatch.write_text(sbatch.read_text().replace('>>"$HOME/queue"', ">>/dev/null"))
    sbatch.write_text(
        sbatch.read_text().replace('wc -l <"$HOME/queue"', f"echo 7 | tee '{desk.home}.taken'")
    )
    done = desk.hpcrun("submit", "job.yaml")
    assert Path(f"{desk.home}.taken").exists()
    assert done.code == 4 and "hpcrun status" in done.err, done
    assert [name for name in far_files(desk) if name.endswith("job.sbatch")]
    assert [*desk.state.glob("*/runs/*-*")]


def test_a_folder_there_that_is_read_only(desk: Desk) -> None:
    require_root()
    inside(desk, "ro")
    done = desk.hpcrun("submit", "job.yaml")
    assert done.code in (1, 2) and "Read-only file system" in done.err, done
    assert "runs_dir" in done.err and done.err.count("error: ") == 1
    assert desk.is_untouched()


def test_a_full_disk_here(desk: Desk) -> None:
    """A run that does not fit is not submitted; a log that does not fit is an error, no hang."""
    require_root()
    (desk.hpcrun.project / "big.bin").write_bytes(os.urandom(400_000))
    done = desk.on_tmpfs("size=256k", "submit", "job.yaml")
    assert done.code == 1 and "No space left on device" in done.err, done
    assert done.err.count("error: ") == 1 and "fix: " in done.err and "Traceback" not in done.err
    assert desk.is_untouched()
    (desk.hpcrun.project / "big.bin").unlink()
    log = desk.begin(desk.submit())
    log.write_bytes(b"x" * 99 * 10_000)
    for words in (("logs", "1"), ("logs", "-f", "1")):
        done = desk.on_tmpfs("size=256k", *words)
        assert done.code == 1 and "No space left on device" in done.err, done
        assert done.err.count("error: ") == 1 and "XDG_STATE_HOME" in done.err, done
    assert desk.hpcrun("logs", "1").code == 0


# ------------------------------------------------------------------ a link that is cut, or slow


def test_sshd_starts_again_while_a_log_is_followed(desk: Desk) -> None:
    """Each byte once, whatever was written meanwhile, and it is told that the link was lost."""
    run = desk.submit()
    log = desk.begin(run)
    follow = desk.hpcrun.start("logs", "-f", "1")
    guard = threading.Timer(60, follow.kill)
    guard.daemon = True
    guard.start()
    assert follow.stdout is not None and follow.stderr is not None

    def told(word: bytes) -> None:
        """Wait until it is told."""
        text = b""
        while word not in text:
            data = os.read(follow.stderr.fileno(), 9999)  # type: ignore[union-attr]
            assert data and b"Traceback" not in data, text
            text += data

    shown = b""
    while not shown.endswith(b"loss 2.5\n"):
        shown += os.read(follow.stdout.fileno(), 999)
    for number in range(2):
        desk.server.stop(sessions=True)
        with log.open("a") as file:
            file.write(f"while it is away, {number}\n" * 500)
        told(b"far: ")
        desk.server.start()
        with log.open("a") as file:
            file.write(f"while it comes back, {number}\n")
        while not shown.endswith(b"while it comes back, %d\n" % number):
            data = os.read(follow.stdout.fileno(), 9999)
            assert data, follow.communicate()
            shown += data
        told(b"connected again")
    desk.end(run)
    rest, err = follow.communicate(timeout=60)
    assert follow.returncode == 0, err
    guard.cancel()
    assert log.read_bytes() == shown + rest
    assert b"Traceback" not in err


@pytest.mark.thorough
def test_a_very_slow_link(desk: Desk) -> None:
    """A telephone line: it takes its time, and nothing is given up."""
    link = desk.slow(0.4)
    link.rate = 30_000
    (desk.hpcrun.project / "code.bin").write_bytes(os.urandom(60_000))
    run = desk.submit()
    log = desk.begin(run)
    log.write_bytes(b"".join(b"step %d loss 1.5\n" % step for step in range(5000)))
    done = desk.hpcrun("logs", "1")
    assert done.code == 0 and done.out.endswith("step 4999 loss 1.5\n")
    assert len(desk.queue()) == 1
    link.close()


def test_two_submits_at_once(desk: Desk) -> None:
    """Two that are meant are two jobs, and both have all of their code."""
    (desk.hpcrun.project / "code.bin").write_bytes(os.urandom(300_000))
    both = [desk.hpcrun.start("submit", "job.yaml", "--json") for _ in range(2)]
    runs = []
    for one in both:
        out, err = one.communicate(timeout=60)
        assert one.returncode == 0, err
        runs.append(json.loads(out)["run_dir"])
    assert sorted(desk.queue()) == sorted(runs) and len({*runs}) == 2
    for run in runs:
        assert (Path(run) / "code/code.bin").stat().st_size == 300_000


@pytest.mark.parametrize("hours", [pytest.param(-1, marks=pytest.mark.thorough), 1])
def test_a_clock_there_that_is_wrong(desk: Desk, hours: int) -> None:
    """What it shows of times may be wrong by that much; the state is not, and the log is whole."""
    run = desk.submit()
    log = desk.begin(run)
    there = time.time() + hours * 3600
    (run / "attempts/0/begin.json").write_text(begin_record(there - 5))
    (run / "attempts/0/beat").touch()

    def written(text: str) -> None:
        with log.open("a") as file:
            file.write(text)
        for path in run.rglob("*"):
            if path.is_file():
                os.utime(path, (there, there))

    written("")
    (status,) = desk.hpcrun("status", "1", "--json").json["runs"]
    assert (status["state"], status["step"]) == ("RUNNING", 1)
    assert status["elapsed_seconds"] >= 0, status
    written("step 2 loss 2.0\n")
    assert desk.hpcrun("logs", "1").out == "step 1 loss 2.5\nstep 2 loss 2.0\n"
    assert "RUNNING" in desk.hpcrun("status").out
    desk.end(run)
    end = json.loads((run / "attempts/0/end.json").read_text())
    end |= {"begun_at": there - 5, "ended_at": there}
    (run / "attempts/0/end.json").write_text(json.dumps(end))
    (desk.home / "queue").unlink()  # Slurm has forgotten it
    (status,) = desk.hpcrun("status", "1", "--json").json["runs"]
    assert (status["state"], status["exit_code"]) == ("COMPLETED", 0)
    assert status["elapsed_seconds"] == pytest.approx(5)


# ------------------------------------------------------------------ what lies here


def garbage(mirror: Path) -> None:
    for path in mirror.parent.rglob("*"):
        if path.is_file():
            path.write_bytes(b"\0{[garbage")


def other_json(mirror: Path) -> None:
    for path in mirror.parent.rglob("*.json"):
        path.write_text("[1, {}]")


def files_for_folders(mirror: Path) -> None:
    for path in mirror.glob("*/*"):
        if path.name in ("attempts", "logs", "cache"):
            shutil.rmtree(path)
            path.write_text("x")


def links(mirror: Path) -> None:
    for path in mirror.glob("*/*"):
        if path.name in ("attempts", "logs"):
            shutil.rmtree(path)
            path.symlink_to("/nonexistent")


def gone(mirror: Path) -> None:
    shutil.rmtree(mirror.parent)


@pytest.mark.parametrize(
    "damage",
    [
        garbage,
        *(pytest.param(one, marks=pytest.mark.thorough) for one in (other_json, files_for_folders)),
        *(pytest.param(one, marks=pytest.mark.thorough) for one in (links, gone)),
    ],
)
def test_a_damaged_mirror(desk: Desk, damage: Callable[[Path], None]) -> None:
    """Whatever lies where the mirror was, it is fetched again, and submit goes on."""
    desk.begin(desk.submit())
    reads = (("status", "1"), ("logs", "1"), ("status",))
    shown = [desk.hpcrun(*words).out for words in reads]
    (mirror,) = desk.state.glob("*/runs")
    damage(mirror)
    for words, text in zip(reads, shown, strict=True):
        done = desk.hpcrun(*words)
        assert done.code == 0, done
        times = r"\d+:\d\d|[0-9]+ s\b"
        assert re.sub(times, "", done.out) == re.sub(times, "", text)
    damage(mirror)
    desk.submit()


# ------------------------------------------------------------------ what must not leak, or come in

PASSPHRASE, PASSWORD, CODE = "open sesame 7391", "swordfish 4417", "902 214 55"
SECRET = "hf_Zq83kfLw0Pn2'x"


def typed(desk: Desk, answers: dict[str, str], *words: str) -> str:
    """Call hpcrun on a terminal, answer what it asks, and return all that was shown."""
    process, terminal = desk.hpcrun.on_terminal(
        sys.executable, "-c", ON_TERMINAL, *words, env={"SSH_ASKPASS_REQUIRE": "never"}
    )
    shown, left = "", dict(answers)
    with contextlib.suppress(OSError):  # the terminal's end
        while data := os.read(terminal, 9999):
            shown += data.decode()
            for question in [each for each in left if each in shown.lower()]:
                time.sleep(0.1)  # getpass throws away what was typed before it asked
                os.write(terminal, f"{left.pop(question)}\n".encode())
    os.close(terminal)
    assert process.wait(60) == 0, shown
    assert not left, shown
    return shown


# The terminal is also the process's own, /dev/tty.
ON_TERMINAL = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.executable, [sys.executable, "-m", "hpcrun", *sys.argv[1:]])
"""


def leaks(folder: Path, *secrets: str) -> list[str]:
    """List the files that have a secret in them, as it is or as base64 has it."""
    found = []
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink():
            data = path.read_bytes()
            # A word of base64 that has text in it has it at one of three places.
            data += b"".join(map(decoded, re.findall(rb"[A-Za-z0-9+/]{16,}", data)))
            if any(secret.encode() in data for secret in secrets):
                found.append(str(path.relative_to(folder)))
    return found


def decoded(word: bytes) -> bytes:
    return base64.b64decode(word + b"=" * (-len(word) % 4)) if len(word) % 4 != 1 else b""


@pytest.mark.parametrize("way", ["paramiko", pytest.param("openssh", marks=pytest.mark.thorough)])
def test_no_passphrase_and_no_secret_is_left_anywhere(desk: Desk, tmp_path: Path, way: str) -> None:
    """In files, records, logs, what --verbose shows, and lists of processes, here and there."""
    key = desk.laptop.make_key("locked", PASSPHRASE)
    (desk.server.folder / "authorized_keys").write_text(Path(f"{key}.pub").read_text())
    config = desk.laptop.ssh / "config"
    config.write_text(config.read_text().replace("/id\n", "/locked\n"))
    desk.server.stop()
    desk.server.options.append("LogLevel DEBUG3")
    desk.server.start()
    profile = desk.hpcrun.project / "hpcrun.yaml"
    profile.write_text(f"{profile.read_text()}ssh: {way}\n")
    desk.hpcrun.write("job.yaml", f"{JOB}secrets: [A_SECRET]\n")
    desk.hpcrun.environ["A_SECRET"] = SECRET
    for tool in (tmp_path / "slurm").iterdir():
        seen = "cat /proc/[0-9]*/cmdline >>~/processes 2>/dev/null; env >>~/environment"
        tool.write_text(tool.read_text().replace("bash\n", f"bash\n{seen}\n", 1))
    asked = {"passphrase": PASSPHRASE}
    shown = typed(desk, asked, "connect", "--verbose")
    if way == "openssh":
        asked = {}  # it was kept
    shown += typed(desk, asked, "submit", "job.yaml")
    for words in ("status", "logs 1", "show 1", "show 1 --json", "status 1 --json"):
        shown += typed(desk, asked, *words.split())
    if way == "openssh":
        desk.hpcrun("connect", "--close")
    assert PASSPHRASE not in shown and SECRET not in shown
    (run,) = (desk.home / "runs").glob("2*")
    assert (run / "secrets.env").stat().st_mode & 0o777 == 0o600
    assert (desk.home / "processes").stat().st_size > 100
    left = leaks(tmp_path, PASSPHRASE, SECRET, SECRET.replace("'", "'\\''"))
    assert left == [str((run / "secrets.env").relative_to(tmp_path))]


def test_no_password_and_no_code_is_left_anywhere(desk: Desk, tmp_path: Path) -> None:
    """Nor does the server's question command the terminal."""
    profile = desk.hpcrun.project / "hpcrun.yaml"
    profile.write_text(profile.read_text().replace("host: far", "host: asks"))
    with askers(desk.laptop) as start:
        server = start("keyboard-interactive", [PASSWORD, CODE], "Site \x1b]0;owned\x07\x1b[2J")
        shown = typed(desk, {"password": PASSWORD, "code": CODE}, "connect", "--verbose")
    assert server.given == [PASSWORD, CODE] and "slurm 24.11.5" in shown
    # A code is shown as it is typed where the server says so.
    assert PASSWORD not in shown and "\x1b" not in shown and "Site" in shown
    assert leaks(tmp_path, PASSWORD, CODE) == []


def test_what_the_cluster_says_commands_no_terminal(desk: Desk) -> None:
    """Banners, refusals, and what its commands print: it is written out, and has an end."""
    escape = r"\033]0;owned\007\033[2J\302\233"
    squeue, sbatch = (desk.home.parent / "slurm" / name for name in ("squeue", "sbatch"))
    was = squeue.read_text()
    for tool, text, words in (
        (sbatch, f"printf 'error {escape}' >&2; exit 1", ("submit", "job.yaml")),
        (squeue, f"printf 'error {escape}' >&2; exit 1", ("status", "1")),
        (squeue, f"printf 'JOBID\\n{escape}\\x1e\\n'", ("status",)),
        (sbatch, f"printf 'slurm {escape}'", ("connect",)),
        (sbatch, f"printf 'error {escape}' >&2; exit 1", ("connect",)),
    ):
        tool.write_text(f"#!/bin/bash\n{text}\n")
        done = desk.hpcrun(*words)
        assert not re.search(r"[\x07\x1b\x9b]", done.out + done.err), done
    squeue.write_text(was)
    desk.server.options.append(f"ForceCommand printf 'closed {escape}'; exit 1")
    desk.server.stop()
    desk.server.start()
    done = desk.hpcrun("submit", "job.yaml")
    assert done.code == 4 and "closed" in done.err, done
    assert not re.search(r"[\x07\x1b\x9b]", done.out + done.err), done


def test_an_answer_without_an_end(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "MOST_OUTPUT", 1 << 20)
    run = desk.submit()
    (desk.home.parent / "slurm" / "squeue").write_text("#!/bin/bash\ncat /dev/zero\n")
    done = desk.hpcrun("status", "1")
    assert done.code == 4 and "has no end" in done.err, done
    desk.server.options.append("ForceCommand cat /dev/zero")
    desk.server.stop()
    desk.server.start()
    done = desk.hpcrun("logs", run.name)
    assert "has no end" in done.err and "what is known here is shown" in done.err, done
