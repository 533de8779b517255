"""Two users on one machine: `games` attacks and spies, `news` trains in a sandbox.

Both are real users, and each of their processes is started as one; they share a folder as /tmp is.
"""

from __future__ import annotations

import json
import os
import pwd
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.needs import require, require_command, require_root
from tests.source import ROOT
from tests.waiting import until

HPCRUN = [sys.executable, "-m", "hpcrun"]
STRANGERS = "20991121-081455-theirs-8x2z"
HERE = "command: [sleep, '2']\nresources: {gpus_per_node: 0}\nsecrets: [A_WORD]\n"
HELD = "command: [sleep, '60']\nresources: {gpus_per_node: 0}\nslurm: {hold: true}\n"
Done = subprocess.CompletedProcess[str]
LOG = "step=1 loss=2.5\nstep=2 loss=2.25\n"
SECRET = "sesame-one-4711\nsesame-two-0815"


@dataclass(frozen=True)
class User:
    """A user with a separate home, in a view of the machine where this Python is readable."""

    name: str
    folder: Path
    mounts: str

    @property
    def home(self) -> Path:
        return self.folder / self.name

    @property
    def runs(self) -> Path:
        return self.folder / "shared" / "runs"

    def argv(self, *words: str | Path, cwd: Path | None = None, **env: str) -> list[str]:
        environ = {"HOME": str(self.home), "PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)}
        environ |= {"USER": self.name, "LANG": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1", **env}
        ids = pwd.getpwnam(self.name)
        return [
            *("nsenter", f"--mount={self.mounts}", "env", "-i", "-C", str(cwd or self.home)),
            *(f"{name}={value}" for name, value in environ.items()),
            *("setpriv", f"--reuid={ids.pw_uid}", f"--regid={ids.pw_gid}", "--clear-groups"),
            *map(str, words),
        ]

    def start(
        self, *words: str | Path, cwd: Path | None = None, **env: str
    ) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        argv = self.argv(*words, cwd=cwd, **env)
        return subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=pipe, text=True)

    def run(self, *words: str | Path, cwd: Path | None = None, **env: str) -> Done:
        with self.start(*words, cwd=cwd, **env) as process:
            try:
                out, err = process.communicate()
            finally:
                process.kill()
        return Done(words, process.returncode, out, err)

    def does(self, script: str, *words: str | Path, cwd: Path | None = None) -> str:
        """Run a shell command with a umask that keeps nothing private; return its output."""
        done = self.run("sh", "-c", f"umask 0; {script}", "sh", *words, cwd=cwd)
        assert done.returncode == 0, done
        return done.stdout

    def writes(self, path: Path, text: str) -> Path:
        self.does('mkdir -p "${1%/*}" && printf %s "$2" >"$1"', path, text)
        return path

    def hpcrun(self, *words: str | Path, cwd: Path | None = None, **env: str) -> Done:
        return self.run(*HPCRUN, *words, cwd=cwd, **env)

    def submits(self, job: str, word: str = "") -> tuple[str, Path]:
        """Submit a job with a umask of 0; return its id and its run's folder."""
        self.writes(self.home / "job.yaml", job)
        words = ("sh", "-c", 'umask 0; exec "$@"', "sh", *HPCRUN, "submit", "job.yaml", "--json")
        done = self.run(*words, A_WORD=word)
        assert done.returncode == 0, done
        answer = json.loads(done.stdout)
        return answer["job_id"], Path(answer["run_dir"])

    def plants(self, record: Path, changes: dict[str, Any], log: str = LOG) -> Path:
        """Place a run next to another user's, with a modified copy of its record."""
        run = self.runs / STRANGERS
        self.writes(run / "submitted.json", json.dumps(json.loads(record.read_text()) | changes))
        self.writes(run / "logs" / "0" / "rank-0.log", log)
        return run


def view() -> str:
    """Write a script that makes this Python and the checkout readable for its child processes."""
    take: list[str] = []
    hide: list[str] = []
    give: list[str] = []
    for path in {Path(name).resolve() for name in (ROOT, sys.prefix, sys.base_prefix)}:
        closed = [up for up in (path, *path.parents) if not up.stat().st_mode & 0o001]
        if closed:
            stash, word = f'"$folder/{len(take)}"', shlex.quote(str(path))
            take += [f"mkdir {stash}", f"mount --bind {word} {stash}"]
            hide += [f"mount -t tmpfs -o mode=755 none {shlex.quote(str(closed[-1]))}"]
            give += [f"mkdir -p {word}", f"mount --bind {stash} {word}"]
            give += [f"umount {stash}", f"rmdir {stash}"]
    lines = ["set -e", *take, *dict.fromkeys(hide), *give]
    # The end takes the sandbox down, also where pytest was killed.
    return "\n".join(
        [*lines, "echo ready", "read -r end || :", '"$@" >/dev/null || :', 'rm -rf "$folder"']
    )


@pytest.fixture(scope="module")
def users() -> Iterator[tuple[User, User]]:
    """Yield `news`, with a running sandbox and a project as its home, and `games`."""
    require_root()
    require_command("slurmctld", os.environ["PATH"] + ":/usr/sbin:/sbin")
    names = {entry.pw_name for entry in pwd.getpwall()}
    require({"news", "games"} <= names, "the users news and games")
    folder = Path(tempfile.mkdtemp(prefix="hpt", dir="/tmp"))
    news, games = (User(name, folder, "/proc/self/ns/mnt") for name in ("news", "games"))
    down = news.argv(*HPCRUN, "sandbox", "down", "--yes")
    with subprocess.Popen(
        ["unshare", "-m", "bash", "-c", view(), "bash", *down],
        env={**os.environ, "folder": str(folder)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
        text=True,
    ) as holder:
        assert holder.stdin and holder.stdout
        assert holder.stdout.readline() == "ready\n"
        mounts = f"/proc/{holder.pid}/ns/mnt"
        news, games = (User(name, folder, mounts) for name in ("news", "games"))
        folder.chmod(0o755)
        for user in (news, games):
            user.home.mkdir(mode=0o755)
            shutil.chown(user.home, user.name)
        for shared in (news.runs.parent, news.runs):
            shared.mkdir()
            shared.chmod(0o1777)
        able = news.run(sys.executable, "-c", "import hpcrun.cli.main")
        require(able.returncode == 0, f"a Python that other users can read: {able.stderr}")
        up = news.hpcrun("sandbox", "up", "--nodes", "1", "--gpus-per-node", "1")
        assert up.returncode == 0, up
        (profile,) = news.home.glob(".cache/hpcrun/sandbox-*/cluster.yaml")
        text = yaml.safe_dump(yaml.safe_load(profile.read_text()) | {"runs_dir": str(news.runs)})
        news.writes(news.home / "hpcrun.yaml", text)
        (news.home / "hpcrun.yaml").chmod(0o644)
        yield news, games


@pytest.fixture(autouse=True)
def swept(users: tuple[User, User]) -> Iterator[None]:
    """End the jobs and remove the files of a test, to isolate the next one."""
    yield
    news, _ = users
    (conf,) = news.home.glob(".cache/hpcrun/sandbox-*/slurm.conf")
    news.run("scancel", "--user=news", SLURM_CONF=str(conf))
    # Then they have removed what they have below /tmp.
    until(lambda: not news.run("squeue", "-h", SLURM_CONF=str(conf)).stdout, "the jobs' ends")
    left = {*news.runs.iterdir(), *news.runs.parent.iterdir()} - {news.runs}
    subprocess.run(["rm", "-rf", *left], check=False)


def test_slurm_conf_of_another_user_loads_no_code(users: tuple[User, User]) -> None:
    """The file is in the place of a former sandbox that one of the user's runs refers to."""
    news, games = users
    job_id, run = news.submits(HELD)
    gone, marker = news.runs.parent / "gone", news.runs.parent / "loaded"
    record = json.loads((run / "submitted.json").read_text()) | {"slurm_conf": f"{gone}/slurm.conf"}
    news.writes(run / "submitted.json", json.dumps(record))
    (run / "submitted.json").chmod(0o644)
    code = f'__attribute__((constructor)) static void f(void){{creat("{marker}", 0666);}}\n'
    games.writes(gone / "a.c", "#include <fcntl.h>\n" + code)
    games.does("g++ -shared -fPIC -o auth_munge.so a.c && cp auth_munge.so hash_k12.so", cwd=gone)
    with socket.create_server(("127.0.0.1", 0)) as theirs:
        conf = "ClusterName=theirs\nSlurmctldHost=localhost(127.0.0.1)\nMessageTimeout=2\n"
        conf += f"SlurmctldPort={theirs.getsockname()[1]}\nPluginDir={gone}\n"
        games.writes(gone / "slurm.conf", conf + "NodeName=n\nPartitionName=p Nodes=n\n")
        games.run("squeue", SLURM_CONF=f"{gone}/slurm.conf")
        assert marker.exists(), "squeue alone loads it"
        marker.unlink()
        for verb in (("wait", job_id, "--timeout", "1"), ("clean",), ("cancel", job_id)):
            news.hpcrun(*verb)
            assert not marker.exists(), verb
        said = news.hpcrun("status", job_id)
    assert not marker.exists()
    why = f"{gone}/slurm.conf is ignored: {gone} belongs to games"
    assert why in said.stdout + said.stderr, said


def test_profile_and_templates_of_another_user_are_refused(users: tuple[User, User]) -> None:
    news, games = users
    project = news.runs.parent / "project"
    template = project / "templates" / "job.sbatch.j2"
    games.writes(template, '{% extends "hpcrun/job.sbatch.j2" %}\n')
    profile = games.writes(project / "hpcrun.yaml", (news.home / "hpcrun.yaml").read_text())
    news.writes(project / "job.yaml", HELD)
    for theirs in (profile, template):
        for verb in (("submit", "job.yaml", "--dry-run"), ("submit", "job.yaml")):
            done = news.hpcrun(*verb, cwd=project)
            assert done.returncode == 2 and f"{theirs} belongs to games" in done.stderr, done
        project.joinpath("hpcrun.yaml").unlink()
        shutil.copy(news.home / "hpcrun.yaml", project)
        shutil.chown(project / "hpcrun.yaml", "news")


def test_run_of_another_user_with_the_same_job_id_is_ignored(users: tuple[User, User]) -> None:
    news, games = users
    job_id, run = news.submits(HELD.replace("slurm: {hold: true}\n", ""))
    planted = games.plants(run / "submitted.json", {"run_id": STRANGERS, "name": "theirs"})
    until(lambda: (run / "attempts" / "0" / "launched").exists(), "the job")
    for verb in (
        ("status", job_id, "--json"),
        ("resubmit", job_id, "--dry-run", "--fresh"),
        ("parse", job_id),
    ):
        done = news.hpcrun(*verb)
        assert STRANGERS not in done.stdout + done.stderr and "2.25" not in done.stdout, done
        assert run.name in done.stdout + done.stderr or verb[0] == "parse", done
    assert news.hpcrun("wait", job_id, "--timeout", "1").returncode not in (0, 2)
    for word in ("status", "parse"):
        named = news.hpcrun(word, planted)
        assert f"{planted}: this run belongs to games" in named.stderr, named
    # What would block who opens it, in a run of theirs and in one that claims to have ended.
    log = planted / "logs" / "0" / "rank-0.log"
    games.does('rm "$1" && mkfifo "$1" "$2/plan.json" && mkdir -p "$2/attempts/0"', log, planted)
    games.does('mkfifo "$1/attempts/0/end.json" "$1/attempts/0/begin.json"', planted)
    for word in ("status", "logs", "parse"):
        assert "not a regular file" in news.hpcrun(word, planted).stderr, word
    done = news.hpcrun("cancel", job_id)
    assert done.returncode == 0 and (run / "cancelled.json").exists(), done
    assert not (planted / "cancelled.json").exists()


def test_links_of_another_user_do_not_redirect_writing(users: tuple[User, User]) -> None:
    news, games = users
    mine = news.writes(news.home / "mine", "mine")
    log = news.writes(news.home / "a.log", LOG)
    shared = news.runs.parent
    waits = news.start(
        "sh",
        "-c",
        'read go; exec "$@"',
        "sh",
        *HPCRUN,
        *("parse", str(log)),
        "--csv",
        str(shared / "b.csv"),
    )
    games.does('ln -s "$1" "$2" && ln -s "$1" a.csv', mine, f".hpcrun-{waits.pid}.part", cwd=shared)
    assert waits.communicate("go\n") and waits.returncode == 0
    assert "2.25" in (shared / "b.csv").read_text()
    done = news.hpcrun("parse", log, "--csv", shared / "a.csv")
    assert done.returncode == 2 and "a link that belongs to games" in done.stderr, done
    assert mine.read_text() == "mine"


def test_text_of_another_user_contains_no_control_sequences(users: tuple[User, User]) -> None:
    news, games = users
    evil = "\x1b]0;owned\x07\x1b[2J\u202e"
    _, run = news.submits(HELD)
    planted = games.plants(
        run / "submitted.json", {"name": evil, "host": evil, "cluster": evil}, log=LOG + evil
    )
    for verb in ("status", "logs", "parse", "wait"):
        more = ["--timeout", "1"] if verb == "wait" else []
        words = shlex.join([*HPCRUN, verb, str(planted), *more])
        done = news.run("script", "-qec", words, "/dev/null")
        assert "belongs to games" in done.stdout, done
        assert not any(part in done.stdout for part in ("\x1b]", "\x1b[2J", "\x07", "\u202e")), done


def test_dry_run_of_a_trusted_project_starts_nothing(users: tuple[User, User]) -> None:
    news, games = users
    project, marker = news.runs.parent / "project", news.runs.parent / "ran"
    script = games.writes(project / "monitor", f"#!/bin/sh\ntouch {marker}\n")
    script.chmod(0o755)
    for name, text in {
        "job.yaml": HELD,
        "hpcrun.yaml": (news.home / "hpcrun.yaml").read_text(),
    }.items():
        games.writes(project / name, text)
    games.does(
        f"git init -q . && git config core.fsmonitor {script} && git add job.yaml", cwd=project
    )
    marker.unlink(missing_ok=True)
    template = '{% extends "hpcrun/job.sbatch.j2" %}\n{% block setup %}\n{{ '
    template += f"cycler.__init__.__globals__.os.popen('touch {marker}').read()"
    games.writes(project / "templates" / "job.sbatch.j2", template + " }}\n{% endblock %}\n")
    trust = {"HPCRUN_TRUST": str(project)}
    refused = news.hpcrun("submit", "job.yaml", "--dry-run", cwd=project, **trust)
    assert refused.returncode == 2 and "job.sbatch.j2:3: " in refused.stderr, refused
    shutil.rmtree(project / "templates")
    done = news.hpcrun("submit", "job.yaml", "--dry-run", cwd=project, **trust)
    assert done.returncode == 0, done
    assert not marker.exists()


CHANGE = """
import os, sys
from pathlib import Path
run = Path(sys.argv[1])
for path in (run, *run.rglob("*")):
    tries = {
        "write": lambda: path.is_file() and path.open("r+b").close(),
        "rename": lambda: path.rename(str(path) + ".x"),
        "mode": lambda: path.chmod(0o777),
        "create": lambda: path.is_dir() and (path / "new").touch(),
        "remove": lambda: path.is_file() and path.unlink(),
    }
    for name, attempt in tries.items():
        try:
            if attempt() is not False:
                print(name, path)
        except OSError:
            pass
print("tried", len(list(run.rglob("*"))))
"""


def test_files_of_a_pending_job_cannot_be_changed_by_others(users: tuple[User, User]) -> None:
    news, games = users
    news.does("git init -q . && echo .cache >.gitignore", cwd=news.home)
    news.writes(news.home / "train.py", "print(1)\n")
    _, run = news.submits(HELD.replace("command: [sleep, '60']", "script: train.py"))
    done = games.run(sys.executable, "-c", CHANGE, run)
    assert done.returncode == 0 and done.stdout.startswith("tried "), done
    assert (run / "code" / "train.py").is_file()


def test_secrets_of_killed_and_never_started_jobs_are_removed(users: tuple[User, User]) -> None:
    news, games = users
    job_id, run = news.submits(HELD + "secrets: [A_WORD]\n", SECRET)
    secrets = run / "secrets.env"
    assert "sesame" in secrets.read_text()
    assert games.run("cat", secrets).stderr.endswith("Permission denied\n")
    assert news.hpcrun("cancel", job_id).returncode == 0
    until(lambda: news.hpcrun("status", job_id) and not secrets.exists(), "the job's end")

    news.writes(news.home / "job.yaml", HERE)
    process = news.start(*HPCRUN, "run", "job.yaml", A_WORD=SECRET)
    try:
        (launched,) = until(lambda: [*news.runs.glob("*/attempts/0/launched")], "the run")
        secrets = launched.parents[2] / "secrets.env"
        assert games.run("cat", secrets).stderr.endswith("Permission denied\n")
    finally:
        process.kill()
        process.communicate()
    until(lambda: not secrets.exists(), "the end of the run, which hpcrun does not see")


def test_multi_line_secret_is_never_shown(users: tuple[User, User]) -> None:
    """No file of the running job contains it, except secrets.env and the log of its own output."""
    news, games = users
    script = "echo step=1 loss=2.5; echo $A_WORD; echo note: $A_WORD; sleep 60"
    job = f"command: [bash, -c, '{script.replace('$A_WORD', chr(34) + '$A_WORD' + chr(34))}']\n"
    job += "resources: {gpus_per_node: 0}\nsecrets: [A_WORD]\n"
    job += "setup: {node_commands: [export BESIDE=it]}\n"
    job_id, run = news.submits(job, SECRET)
    log = run / "logs" / "0"
    until(lambda: any("note: " in path.read_text() for path in log.glob("*.log")), "the log")
    for verb in (
        ("logs", job_id),
        ("parse", job_id),
        ("parse", job_id, "--json"),
        ("status", job_id),
    ):
        done = news.hpcrun(*verb)
        assert done.stdout and "sesame" not in done.stdout + done.stderr, done
    look = 'find "$1" /tmp/hpcrun-"$2"* -type f ! -path "*/logs/*" -exec grep -ls sesame {} +; :'
    assert games.does(look, news.folder, run.name) == ""
    assert news.does(look, news.folder, run.name).split() == [str(run / "secrets.env")]
