"""Faults between laptop and cluster: a real sshd, a real fault, a clear message."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from hpcrun.curves import read_log
from hpcrun.curves.lines.log_reader import LogReader
from hpcrun.curves.read_log import KEEP_SAMPLES_ABOVE_BYTES
from hpcrun.remote.ssh import local_timezone
from tests.needs import require_root
from tests.remote.desk import MOUNT, Desk, begin_record
from tests.slurm_answers import squeue_row
from tests.waiting import PATIENCE, until
from tests.workloads.trainer import free_port

# ------------------------------------------------------------------ user mistakes


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


@pytest.mark.slow
@pytest.mark.parametrize("way", ["paramiko", pytest.param("openssh", marks=pytest.mark.thorough)])
@pytest.mark.parametrize(
    ("mistake", "message", "fix"),
    [
        (unknown_host, "no-such-host.invalid", "VPN"),
        pytest.param(
            wrong_port, "Connection refused", "does ssh far work", marks=pytest.mark.thorough
        ),
        (wrong_key_path, "authentication failed", "try ssh far"),
        (malformed_config, "Bad configuration option: porrt", "ssh"),
        pytest.param(
            key_is_refused, "authentication failed", "does not retry", marks=pytest.mark.thorough
        ),
        pytest.param(
            changed_host_key, "has changed: it is now ", "ssh-keygen -R", marks=pytest.mark.thorough
        ),
        pytest.param(unknown_host_key, "is not known", "ssh far once", marks=pytest.mark.thorough),
    ],
)
def test_configuration_mistake_is_one_error_with_a_fix(
    desk: Desk, mistake: Any, message: str, fix: str, way: str
) -> None:
    """Nothing is left half done, and after the correction everything works."""
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


# ------------------------------------------------------------------ full and read-only disks


def inside(desk: Desk, options: str) -> None:
    """Mount a separate file system as the cluster's home."""
    desk.server.stop()
    desk.server.inside = ["unshare", "-m", "bash", "-c", MOUNT, "bash", options, str(desk.home)]
    desk.server.start()


def far_files(desk: Desk) -> list[str]:
    """List the files below the cluster's home, which is invisible to this process."""
    assert desk.server.process is not None
    argv = ["nsenter", "-m", f"--target={desk.server.process.pid}"]
    find = ["find", str(desk.home), "-type", "f", "-printf", "%P\n"]
    return subprocess.run([*argv, *find], capture_output=True, text=True, check=True).stdout.split()


@pytest.mark.slow
def test_full_disk_on_the_cluster_is_reported(desk: Desk) -> None:
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


@pytest.mark.slow
def test_disk_filled_during_sbatch_keeps_the_submitted_run(desk: Desk) -> None:
    """The job exists once and its run is kept, no matter which file cannot be written."""
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


def test_read_only_folder_on_the_cluster_is_reported(desk: Desk) -> None:
    require_root()
    inside(desk, "ro")
    done = desk.hpcrun("submit", "job.yaml")
    assert done.code in (1, 2) and "Read-only file system" in done.err, done
    assert "runs_dir" in done.err and done.err.count("error: ") == 1
    assert desk.is_untouched()


@pytest.mark.slow
def test_cancel_works_with_a_read_only_run_folder(desk: Desk, tmp_path: Path) -> None:
    """The job is cancelled, and a message reports that the record cannot be written."""
    require_root()
    inside(desk, "size=4m")
    assert desk.hpcrun("submit", "job.yaml").code == 0
    assert desk.server.process is not None
    argv = ["nsenter", "-m", f"--target={desk.server.process.pid}"]
    subprocess.run([*argv, "mount", "-o", "remount,ro", str(desk.home)], check=True)
    for words in (("logs", "1"), ("status", "1")):
        assert desk.hpcrun(*words).code == 0
    done = desk.hpcrun("cancel", "1")
    assert (tmp_path / "slurm" / "scancel.asked").read_text().split()[-1] == "1"
    assert "Read-only file system" in done.err and "Traceback" not in done.err, done


@pytest.mark.slow
def test_full_local_disk_is_reported(desk: Desk) -> None:
    """A run that does not fit is not submitted; a log that does not fit is an error, not a hang."""
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


@pytest.mark.slow
def test_job_is_shown_and_cancelled_although_the_laptop_has_no_free_disk(
    desk: Desk, tmp_path: Path
) -> None:
    require_root()
    log = desk.begin(desk.submit())
    log.write_text("step 1 loss 2.5\nstep 2 loss 2.0\n")
    for words, shown in (
        (("status",), "RUNNING"),
        (("logs", "1"), "step 2 loss 2.0"),
        (("cancel", "1"), "job 1 "),
    ):
        done = desk.on_full_disk(*words)
        assert done.code == 0 and shown in done.out, done
        (place,) = re.findall(r"no space left for .*: .* records in (\S+)", done.err)
        assert not Path(place).exists()
    assert (tmp_path / "slurm" / "scancel.asked").read_text().split()[-1] == "1"
    done = desk.on_full_disk("submit", "job.yaml")
    assert done.code == 1 and "No space left on device" in done.err, done


# ------------------------------------------------------------------ broken and slow links


@pytest.mark.slow
def test_followed_log_survives_a_restart_of_sshd(desk: Desk) -> None:
    """Each byte is shown once, and the lost connection is reported."""
    run = desk.submit()
    log = desk.begin(run)
    follow = desk.hpcrun.start("logs", "-f", "1")
    guard = threading.Timer(60, follow.kill)
    guard.daemon = True
    guard.start()
    assert follow.stdout is not None and follow.stderr is not None

    def told(word: bytes) -> None:
        """Wait until the text is printed."""
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
    rest, err = follow.communicate()
    assert follow.returncode == 0, err
    guard.cancel()
    assert log.read_bytes() == shown + rest
    assert b"Traceback" not in err


@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_slow_link_causes_no_errors(desk: Desk) -> None:
    """With two seconds per reply, nothing times out and nothing is reported as failed."""
    link = desk.slow(1.0)
    link.rate = 5_000
    (desk.hpcrun.project / "code.bin").write_bytes(os.urandom(30_000))
    done = desk.hpcrun("submit", "job.yaml", "--json")
    assert done.code == 0, done
    run = Path(done.json["run_dir"])
    calm = "far is slow to answer; still waiting ...\n"
    assert done.err.replace(calm, "") == "", done.err
    log = desk.begin(run)
    log.write_bytes(b"".join(b"step %d loss 1.5\n" % step for step in range(3000)))
    for words, part in (
        ("status", "RUNNING"),
        ("status 1", "RUNNING"),
        ("logs 1", "step 2999 loss"),
    ):
        done = desk.hpcrun(*words.split())
        assert done.code == 0 and part in done.out and done.err.replace(calm, "") == "", done
    waiting = desk.hpcrun.start("wait", "1", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    time.sleep(30)  # it asks, and follows
    desk.end(run)
    out, err = waiting.communicate(timeout=200)
    assert waiting.returncode == 0, (out, err)
    assert b"reach" not in err and b"no answer" not in err, err
    assert len(desk.queue()) == 1
    link.close()


@pytest.mark.slow
def test_concurrent_submits_create_two_complete_jobs(desk: Desk) -> None:
    """Both jobs contain all of their code."""
    (desk.hpcrun.project / "code.bin").write_bytes(os.urandom(300_000))
    both = [desk.hpcrun.start("submit", "job.yaml", "--json") for _ in range(2)]
    runs = []
    for one in both:
        out, err = one.communicate()
        assert one.returncode == 0, err
        runs.append(json.loads(out)["run_dir"])
    assert sorted(desk.queue()) == sorted(runs) and len({*runs}) == 2
    for run in runs:
        assert (Path(run) / "code/code.bin").stat().st_size == 300_000


@pytest.mark.parametrize(("zone", "offset"), [("Asia/Kolkata", "+0530"), ("UTC3:30", "-0330")])
def test_slurm_times_are_in_the_local_time_zone(
    monkeypatch: pytest.MonkeyPatch, zone: str, offset: str
) -> None:
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        there = {"TZ": local_timezone(), "PATH": os.environ["PATH"]}
        done = subprocess.run(["date", "+%z"], env=there, check=True, capture_output=True)
        assert done.stdout.decode().strip() == offset
    finally:
        monkeypatch.undo()
        time.tzset()


def test_expected_start_is_in_the_local_time_zone(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = "2027-01-02T03:04:05"
    answer = f"sbatch: Job 5 to start at {start} using 1 processors on nodes n1 in partition p"
    sbatch = desk.home.parent / "slurm/sbatch"
    text = sbatch.read_text()
    shebang, _, rest = text.partition("\n")
    estimate = f'[[ $1 != --test-only ]] || {{ echo "{answer}" >&2; exit; }}'
    sbatch.write_text(f"{shebang}\n{estimate}\n{rest}")
    is_later = datetime.fromisoformat(start).astimezone(timezone(timedelta(hours=5, minutes=30)))
    monkeypatch.setenv("TZ", "Asia/Kolkata")
    time.tzset()
    try:
        done = desk.hpcrun("submit", "job.yaml", "--test-only", "--json")
    finally:
        monkeypatch.undo()
        time.tzset()
    assert done.json["start"] == is_later.strftime("%Y-%m-%dT%H:%M:%S")


@pytest.mark.slow
@pytest.mark.parametrize("hours", [pytest.param(-1, marks=pytest.mark.thorough), 1])
def test_wrong_clock_of_the_cluster_affects_only_times(desk: Desk, hours: int) -> None:
    """The shown times may be off by the error; state and log are correct."""
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


# ------------------------------------------------------------------ local state


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


def folders_for_files(mirror: Path) -> None:
    for path in [*mirror.parent.rglob("*")]:
        if path.is_file():
            path.unlink()
            (path / "inner").mkdir(parents=True)
            (path / "inner" / "x").write_text("x")


def links(mirror: Path) -> None:
    for path in mirror.glob("*/*"):
        if path.name in ("attempts", "logs"):
            shutil.rmtree(path)
            path.symlink_to("/nonexistent")


def gone(mirror: Path) -> None:
    shutil.rmtree(mirror.parent)


@pytest.mark.slow
@pytest.mark.parametrize(
    "damage",
    [
        garbage,
        folders_for_files,
        *(pytest.param(one, marks=pytest.mark.thorough) for one in (other_json, files_for_folders)),
        *(pytest.param(one, marks=pytest.mark.thorough) for one in (links, gone)),
    ],
)
def test_corrupt_mirror_is_fetched_again(desk: Desk, damage: Callable[[Path], None]) -> None:
    """Whatever replaces the mirror, it is fetched again, and submit still works."""
    desk.begin(desk.submit())
    reads = (("status", "1"), ("logs", "1"), ("status",))
    shown = [desk.hpcrun(*words).out for words in reads]
    (mirror,) = desk.state.glob("*/runs")
    damage(mirror)
    for words, text in zip(reads, shown, strict=True):
        done = desk.hpcrun(*words)
        assert done.code == 0, done
        times = r"\d+:\d\d|[0-9]+ ?s\b"
        assert re.sub(times, "", done.out) == re.sub(times, "", text)
    damage(mirror)
    desk.submit()


def test_cached_samples_of_a_long_log_are_not_read_again(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is kept in the mirror, and goes with it; what there is of it there counts for nothing."""
    monkeypatch.setattr(read_log, "KEEP_SAMPLES_ABOVE_BYTES", 8)
    fed: list[bytes] = []
    feed = LogReader.feed

    def noted(own: LogReader, data: bytes) -> Any:
        fed.append(data)
        return feed(own, data)

    def losses() -> list[float]:
        fed.clear()
        done = desk.hpcrun("parse", "1", "--json", "--full")
        assert done.code == 0, done
        return [float(value) for value in done.json["runs"][0]["metrics"]["loss"]["values"]]

    monkeypatch.setattr(LogReader, "feed", noted)

    run = desk.submit()
    log = desk.begin(run)
    (run / "cache").mkdir()
    (run / "cache/samples-0-rank-0").write_text("hostile")
    first, second = "step 1 loss 2.5\n", "step 2 loss 2.0\n"
    assert losses() == [2.5] and b"".join(fed) == first.encode()
    log.write_text(first + second)
    assert losses() == [2.5, 2.0] and b"".join(fed) == (first + second).encode()
    assert losses() == [2.5, 2.0] and not fed
    (kept,) = desk.state.glob("*/runs/*/cache/samples-*")
    shutil.rmtree(kept.parent)
    assert losses() == [2.5, 2.0] and b"".join(fed) == (first + second).encode()
    log.unlink()  # rotated
    log.write_text("step 1 loss 3.25\nstep 2 loss 3.0\nstep 3 loss 2.5\n")
    assert losses() == [3.25, 3.0, 2.5]


@pytest.mark.slow
def test_rotated_log_is_not_read_from_the_cache(desk: Desk) -> None:
    """The cache of the previous log does not apply to the new one."""
    run = desk.submit()
    log = desk.begin(run)
    lines = "".join(f"{'noise ' * 90}\nstep {n} loss {2 + n % 7}\n" for n in range(17_000))
    assert len(lines) > KEEP_SAMPLES_ABOVE_BYTES
    log.write_text(lines)
    assert desk.hpcrun("parse", "1").code == 0
    assert [*desk.state.glob("*/runs/*/cache/samples-*")]
    words = ("--json", "--full")
    with subprocess.Popen(
        [sys.executable, "-m", "hpcrun", "parse", "-f", "1", *words],
        cwd=desk.hpcrun.project,
        env=desk.hpcrun.environ,
        stdout=subprocess.PIPE,
    ) as follow:
        log.rename(desk.home / "rank-0.log.1")
        log.write_text(lines.replace("loss", "loss 1", 2))
        desk.end(run)
        out, _ = follow.communicate(timeout=PATIENCE)
    (found,), (expected,) = (
        json.loads(text)["runs"] for text in (out, desk.hpcrun("parse", str(log), *words).out)
    )
    assert found["metrics"] == expected["metrics"] and found["bytes"] == expected["bytes"]


@pytest.mark.slow
def test_profiles_of_the_same_name_have_separate_runs(desk: Desk) -> None:
    """For example two projects that name no cluster."""
    desk.begin(desk.submit())
    assert desk.hpcrun("logs", "1").out == "step 1 loss 2.5\n"
    profile = desk.hpcrun.project / "hpcrun.yaml"
    was = profile.read_text()
    profile.write_text(was.replace("~/runs", "~/others"))
    for words in ("status 1", "logs 1"):
        assert "step 1" not in desk.hpcrun(*words.split()).out
    profile.write_text(was)
    assert desk.hpcrun("logs", "1").out == "step 1 loss 2.5\n"


@pytest.mark.slow
def test_ctrl_c_during_upload_ends_the_submission(desk: Desk) -> None:
    """After the upload, it waits for Slurm's reply instead."""
    (desk.hpcrun.project / "big.bin").write_bytes(os.urandom(8_000_000))
    link = desk.slow(0.0)
    link.rate = 1e6
    argv = [sys.executable, "-m", "hpcrun", "submit", "job.yaml"]
    with subprocess.Popen(
        argv, cwd=desk.hpcrun.project, env=desk.hpcrun.environ, stderr=subprocess.PIPE, text=True
    ) as submit:
        until(lambda: [*desk.home.glob("runs/.incoming-*")], "what arrives")
        submit.send_signal(signal.SIGINT)
        link.rate = float("inf")
        _, err = submit.communicate(timeout=PATIENCE)
    assert submit.returncode == 130 and "error" not in err, err
    until(lambda: not [*desk.home.glob("runs/.incoming-*")], "the end of it there")
    assert desk.is_untouched()
    link.close()


# Typical personal settings in a profile, including options for tar.
PROFILE = """\
cd() { builtin cd "$@" && ls; }; export -f cd
export CDPATH=/tmp TAR_OPTIONS=--no-such-option POSIXLY_CORRECT=1
export SITE_TOKEN=correct-horse
IFS=:; set -efuvx -o noclobber
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", [".bash_profile", ".bashrc"])
def test_shell_profile_with_aliases_and_options_is_harmless(desk: Desk, name: str) -> None:
    (desk.home / name).write_text(PROFILE)
    if name == ".bash_profile":
        profile = desk.hpcrun.project / "hpcrun.yaml"
        profile.write_text(f"{profile.read_text()}login_shell: true\n")
    sbatch = desk.home.parent / "slurm" / "sbatch"
    sbatch.write_text(sbatch.read_text() + 'env >"$HOME/job-environment"\n')
    run = desk.submit()
    environment = (desk.home / "job-environment").read_text()
    assert "SITE_TOKEN=" in environment and "POSIXLY_CORRECT" not in environment
    log = desk.begin(run)
    assert desk.hpcrun("logs", "1").out == "step 1 loss 2.5\n"
    log.write_text("step 1 loss 2.5\nstep 2 loss 2\n")
    assert [row["step"] for row in desk.hpcrun("status", "--json").json["runs"]] == [2]
    desk.end(run)
    assert desk.hpcrun("clean", "--yes", "1").code == 0 and not run.exists()
    (desk.home / "runs").rename(desk.home / "moved")
    (desk.home / "runs").write_text("no folder")
    done = desk.hpcrun("submit", "job.yaml", "--no-check")
    assert done.code == 1 and "correct-horse" not in done.out + done.err, done
    assert "cannot be written: mkdir: cannot create directory" in done.err, done


@pytest.mark.slow
@pytest.mark.parametrize(
    "words", ["status RUN", "status 1", "logs 1", "parse 1", "wait 1", "cancel 1", "status"]
)
@pytest.mark.parametrize("begun", [False, True])
def test_run_removed_on_the_cluster_stays_removed(desk: Desk, words: str, begun: bool) -> None:
    run = desk.submit()
    other = desk.submit()
    if begun:
        desk.begin(run)
        desk.end(run)
        assert "COMPLETED" in desk.hpcrun("status", "1").out
    shutil.rmtree(run)
    done = desk.hpcrun(*words.replace("RUN", run.name).split())
    if words == "status":
        assert done.code == 0 and [line.split()[0] for line in done.out.splitlines()[1:]] == ["2"]
    else:
        # The id may belong to another job, which the local Slurm, if any, does not know.
        assert done.code in (2, 4) and not {"COMPLETED", "LOST"} & {*done.out.split()}, done
        assert done.code == 2 or words != "status RUN", done
    assert not [*desk.state.glob(f"*/runs/{run.name}")] and [
        *desk.state.glob(f"*/runs/{other.name}")
    ]


@pytest.mark.slow
def test_job_id_is_known_if_the_laptop_died_before_sbatch_answered(desk: Desk) -> None:
    run = desk.submit()
    (desk.home / "queue").unlink()  # Slurm has forgotten the job
    old = f"20200101-000000-{run.name.split('-', 2)[2]}"
    (run / "submitted.json").unlink()
    (run / "plan.json").write_text((run / "plan.json").read_text().replace(run.name, old))
    shutil.rmtree(desk.state)
    run.rename(run.with_name(old))
    for _ in range(2):  # the second time with a record of what was found
        row = desk.hpcrun("status", old, "--json").json["runs"][0]
        assert (row["job_id"], row["state"]) == ("1", "LOST"), row


@pytest.mark.slow
def test_run_being_uploaded_is_not_treated_as_removed(desk: Desk) -> None:
    """Other commands read the runs meanwhile."""
    run = desk.submit()
    kept = next(desk.state.glob(f"*/runs/{run.name}"))
    new = kept.with_name(f"{kept.name[:-4]}zzzz")
    shutil.copytree(kept, new, symlinks=True)
    for path in (new / "submitted.json", new / "cache"):
        path.unlink() if path.is_file() else shutil.rmtree(path)
    for _ in range(3):
        assert desk.hpcrun("status").code == 0
        assert desk.hpcrun("parse", run.name).code in (0, 1)
        assert (new / "plan.json").is_file()
    os.utime(new, (0, 0))  # a day later it was never sent
    assert desk.hpcrun("status").code == 0
    assert not new.exists()


@pytest.mark.slow
@pytest.mark.parametrize(("login", "owner", "code"), [("ada", "ada", 0), ("ada", "bob", 2)])
def test_jobs_are_matched_by_the_login_name_of_the_cluster(
    desk: Desk, login: str, owner: str, code: int
) -> None:
    """The login name may differ from the local user name."""
    slurm = desk.home.parent / "slurm"
    (slurm / "squeue.out").write_text(squeue_row("77", "RUNNING", u=owner, Z="/w"))
    (slurm / "squeue").write_text(
        '#!/bin/bash\n[[ $* == *--noheader* ]] || echo JOBID\nexec cat "${0%/*}/squeue.out"\n'
    )
    (desk.home / ".bashrc").write_text(f"export USER={login} LOGNAME={login}\n")
    done = desk.hpcrun("cancel", "77")
    assert done.code == code, done
    assert (slurm / "scancel.asked").exists() == (code == 0)
    assert code == 0 or f"77 is {owner}'s" in done.err


@pytest.mark.slow
def test_clean_measures_runs_on_the_cluster(desk: Desk) -> None:
    run = desk.submit()
    desk.begin(run)
    (run / "checkpoints").mkdir()
    (run / "checkpoints/model.bin").write_bytes(os.urandom(5 << 20))
    desk.end(run)
    done = desk.hpcrun("clean", "--dry-run", "1", "--json")
    assert [5 << 20 < one["bytes"] < 6 << 20 for one in done.json["runs"]] == [True], done
    desk.server.stop()
    for words in (("clean", "--dry-run"), ("clean", "--yes")):
        done = desk.hpcrun(*words)
        assert done.code == 4 and "nothing to remove" not in done.out, done
