"""The harness alone: bash and a run folder, without Slurm and hpcrun."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

from hpcrun.jobside.records import IDLE_ATTEMPTS_NOTE
from hpcrun.render.files import ARCHIVE
from hpcrun.render.quoting import quote_bash
from hpcrun.runs.records import read_history
from hpcrun.runs.usage import read_node_usage
from tests.harness_job import RANK, Job
from tests.harness_job import job as job
from tests.jobside.old_pythons import pythons


def test_successful_job_is_recorded(job: Job) -> None:
    before = time.time()
    job.write('until [ -s "$HPCRUN_RUN_DIR/usage/0/node-0" ]; do sleep 0.01; done; echo trained')
    code, out = job.go()
    assert code == 0
    assert "hpcrun: attempt 0 begins on " in out
    assert out.endswith("hpcrun: attempt 0 ended with exit code 0\n")
    assert "trained\n" in job.log() and "trained" not in out
    begin, beat, end = job.last.begin, job.last.beat, job.end
    assert begin is not None and beat is not None
    assert (begin.attempt, begin.job_id, begin.nodes) == (0, "", begin.host)
    assert before - 1 < begin.begun_at <= end.ended_at < time.time() + 1
    assert before - 2 < beat < time.time() + 1
    assert (end.exit_code, end.signal, end.stopped_by, end.first_failure) == (0, None, None, None)
    assert end.begun_at == begin.begun_at
    (usage,) = read_node_usage(job.run)
    assert (usage.node, usage.rank, usage.attempt) == (begin.host, 0, 0)
    assert usage.memory_peak and usage.cpus
    assert not list(job.run.path.rglob("*.part"))


@pytest.mark.parametrize(
    ("node", "code", "number"),
    [
        ("exit 7", 7, None),
        ("exit 255", 255, None),
        ("kill -9 $$", 137, 9),
        ("kill -SEGV $$", 139, 11),
        ("false", 1, None),
    ],
)
def test_failed_job_has_the_exit_code_of_its_rank(
    job: Job, node: str, code: int, number: int | None
) -> None:
    job.write(node)
    assert job.go()[0] == code
    assert (job.end.exit_code, job.end.signal, job.end.stopped_by) == (code, number, None)
    assert (job.failure.rank, job.failure.exit_code, job.failure.signal) == (None, code, number)


def test_rank_that_failed_first_is_named(job: Job) -> None:
    # As a launcher does: it ends the others, and then itself with a code of its own.
    ranks = 'export LOCAL_RANK=$RANK WORLD_SIZE=2\nexec bash -- "$HPCRUN_RUN_DIR/harness.sh" rank'
    job.write(
        f"(export RANK=1\n{ranks} bash -c 'exit 5')\n(export RANK=0\n{ranks} bash -c 'exit 6')\n"
        "exit 1",
        world=2,
    )
    assert job.go()[0] == 5
    assert (job.failure.rank, job.failure.local_rank, job.failure.exit_code) == (1, 1, 5)
    assert (job.failure.node, job.end.exit_code) == (0, 5)


def test_failed_rank_is_recorded_although_the_launcher_terminates_it(job: Job) -> None:
    # torchrun sends TERM to its ranks as soon as one of them has failed. date is what the guard
    # calls, as its child, while it writes its record.
    folder = job.run.path / "bin"
    folder.mkdir()
    (folder / "date").write_text('#!/bin/bash\nkill -TERM $PPID\nexec /bin/date "$@"\n')
    (folder / "date").chmod(0o755)
    job.write(f"RANK=0 LOCAL_RANK=0 WORLD_SIZE=1 {RANK} bash -c 'exit 7'")
    assert job.go(PATH=f"{folder}:{os.environ['PATH']}")[0] == 7
    assert (job.failure.rank, job.failure.exit_code) == (0, 7)
    assert "unbound" not in job.log()


def test_older_checkpoints_are_removed_as_the_attempt_ends(job: Job) -> None:
    job.write(
        'for n in 1 2 3; do mkdir -p -- "$HPCRUN_CHECKPOINT_DIR/step$n"\n'
        'printf "%s" "thirty bytes of no known form" >"$HPCRUN_CHECKPOINT_DIR/step$n/a.bin"; done'
    )
    where = job.run.path / "my checkpoints"
    environ = {"HPCRUN_CHECKPOINT_DIR": str(where), "HPCRUN_WORLD_SIZE": "1"}
    code, out = job.go(b"", **environ, HPCRUN_CHECKPOINT_KEEP="2")
    assert code == 0, out
    assert sorted(path.name for path in where.iterdir()) == ["step2", "step3"]
    assert "hpcrun: removed checkpoint step1; newer ones that are whole: 2\n" in out


@pytest.mark.parametrize("survive", ["", "time_limit"])
def test_checkpoint_folder_exists_when_training_starts(job: Job, survive: str) -> None:
    job.write('printf weights >"$HPCRUN_CHECKPOINT_DIR/model.pt"')
    where = job.run.path / "my checkpoints"
    environ = {"HPCRUN_CHECKPOINT_DIR": str(where), "HPCRUN_WORLD_SIZE": "1"}
    code, out = job.go(b"", **environ, HPCRUN_SURVIVE=survive)
    assert code == 0, out
    assert (where / "model.pt").read_text() == "weights"


def test_checkpoint_folder_that_cannot_be_created_does_not_stop_the_program(job: Job) -> None:
    job.write('[ ! -e "$HPCRUN_CHECKPOINT_DIR" ] && echo "still trained"')
    code, out = job.go(b"", HPCRUN_CHECKPOINT_DIR="/proc/none", HPCRUN_WORLD_SIZE="1")
    assert code == 0, out
    assert "mkdir" not in out + job.log()


def test_successful_rank_leaves_no_failure_record(job: Job) -> None:
    job.write(f"export RANK=0 LOCAL_RANK=0 WORLD_SIZE=1\n{RANK} sh -c 'echo \"$@\"' - 'a b' ''")
    assert job.go()[0] == 0
    assert "a b \n" in job.log()
    assert not list((job.run.attempts / "0" / "failures").iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("seen", ["WORLD_SIZE=1", "WORLD_SIZE=", "OTHER=4"])
def test_rank_in_a_world_of_another_size_stops(job: Job, seen: str) -> None:
    job.write(f"export RANK=0 LOCAL_RANK=0 {seen}\n{RANK} echo trained", world=4)
    assert job.go()[0] == 1
    assert "trained" not in job.log()
    assert "and the job has 4: the nodes would train apart" in job.log()


# ---- claiming


def test_duplicate_job_ends_immediately_and_changes_nothing(job: Job) -> None:
    assert job.go()[0] == 0
    before = {path: path.read_bytes() for path in job.run.path.rglob("*") if path.is_file()}
    code, out = job.go()
    assert code == 93
    assert "attempt 0 of this run is taken" in out
    assert {p: p.read_bytes() for p in job.run.path.rglob("*") if p.is_file()} == before


@pytest.mark.slow
def test_files_for_the_number_of_nodes_are_installed(job: Job) -> None:
    """Of a range; another attempt may have another number, and a duplicate takes nothing."""
    job.write("echo for none")
    for count in (1, 2):
        folder = job.run.path / f"nodes-{count}"
        folder.mkdir()
        (folder / "node.sh").write_text(f"echo trained on {count}\n")
        (folder / "plan.json").write_text(f'{{"nodes": {count}}}\n')
    node, plan = job.run.path / "node.sh", job.run.path / "plan.json"
    assert job.go(SLURM_JOB_NUM_NODES="2")[0] == 0
    assert (node.read_text(), plan.read_text()) == ("echo trained on 2\n", '{"nodes": 2}\n')
    assert job.go(SLURM_JOB_NUM_NODES="1")[0] == 93
    assert plan.read_text() == '{"nodes": 2}\n'
    assert job.go(SLURM_JOB_NUM_NODES="1", SLURM_RESTART_COUNT="1")[0] == 0
    assert (node.read_text(), plan.read_text()) == ("echo trained on 1\n", '{"nodes": 1}\n')
    assert [path.name for path in job.run.path.glob("*.part")] == []


@pytest.mark.slow
def test_unreadable_files_for_the_number_of_nodes_replace_nothing(job: Job) -> None:
    (job.run.path / "nodes-1" / "node.sh").mkdir(parents=True)
    code, out = job.go(SLURM_JOB_NUM_NODES="1")
    assert code == 1 and f"hpcrun: error: cannot read or write {job.run.path} on " in out
    assert (job.run.path / "node.sh").read_text() == "#!/bin/bash\necho trained\n"
    assert (job.end.exit_code, job.log()) == (1, "")


def test_one_of_many_concurrent_jobs_runs(job: Job) -> None:
    started = [job.start() for _ in range(5)]
    codes = sorted(job.finish(process)[0] for process in started)
    assert codes == [0, 93, 93, 93, 93]
    assert job.log().count("trained") == 1


def test_restart_is_a_new_attempt(job: Job) -> None:
    job.write("echo this is $HPCRUN_ATTEMPT")
    assert job.go()[0] == 0
    assert job.go(SLURM_RESTART_COUNT="1")[0] == 0
    assert [attempt.index for attempt in read_history(job.run).attempts] == [0, 1]
    assert job.last.begin is not None and job.last.begin.attempt == 1
    assert "this is 0" in job.log(0) and "this is 1" in job.log(1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("most", "left", "note"),
    [
        (20, {}, IDLE_ATTEMPTS_NOTE),
        (3, {"mark": "step-8.pt 1"}, "it has had its 3 attempts (survive.max_attempts)"),
        (20, {"mark": "step-8.pt 1"}, None),
        (20, {"again": ""}, None),
        (20, {"end.json": '{"next": "requeue"}'}, None),
    ],
)
def test_crash_loop_of_slurm_restarts_is_stopped(
    job: Job, most: int, left: dict[str, str], note: str | None
) -> None:
    """The nodes of three attempts died before their scripts could decide about a restart."""
    for number in range(3):
        folder = job.run.attempts / str(number)
        folder.mkdir()
        (folder / "mark").write_text("\n")
        (folder / "beat").write_text(f"{number}50\n")
        (folder / "begin.json").write_text(
            f'{{"attempt": {number}, "job_id": "7", "host": "n1", "pid": 9, "nodes": "n1",'
            f' "begun_at": {number}00.5, "restarts": {number}}}\n'
        )
    for name, text in left.items():
        (folder / name).write_text(text)
    parts = ". ./records.sh && . ./batch.sh && . ./jobside.sh"
    program = f"host=n1; {parts} && next_attempt \"$HPCRUN_RUN_DIR\" 7 '' ''"
    env = {"HPCRUN_SURVIVE": "preempted node_fail", "HPCRUN_MAX_ATTEMPTS": str(most)}
    env |= {"SLURM_JOB_ID": "7", "SLURM_RESTART_COUNT": "3", "PATH": os.environ["PATH"]}
    env |= {"HPCRUN_JOBSIDE_PYTHON": sys.executable}
    done = subprocess.run(
        ["bash", "-uc", program],
        cwd=job.run.path,
        env={"HPCRUN_RUN_DIR": str(job.run.path), **env},
        capture_output=True,
        text=True,
        check=False,
    )
    if note is None:
        assert (done.returncode, done.stdout, done.stderr) == (0, "3\n", "")
    else:
        assert (done.returncode, done.stdout) == (1, "")
        assert "attempt 2 was the last one of this run" in done.stderr
        assert (job.end.why, job.end.next, job.end.note) == ("node_fail", None, note)
        assert (job.end.begun_at, job.end.ended_at, job.end.exit_code) == (200.5, 250, 1)


def test_unwritable_run_folder_is_reported(job: Job) -> None:
    job.run.attempts.rmdir()
    code, out = job.go()
    assert code == 1
    assert f"hpcrun: error: cannot write to {job.run.path} on " in out
    assert not list(job.run.logs.iterdir())


# ---- stopping


@pytest.mark.parametrize("name", ["TERM", "INT", "HUP"])
def test_stop_signal_reaches_the_program_and_is_recorded(job: Job, name: str) -> None:
    job.write(
        "trap 'echo saving; exit 0' TERM\ntouch \"$HPCRUN_RUN_DIR/ready\"\n"
        "while :; do sleep 0.02; done"
    )
    process = job.start()
    job.wait_for("ready")
    process.send_signal(signal.Signals[f"SIG{name}"])
    code, out = job.finish(process)
    assert code == 143
    assert f"received SIG{name}: stopping" in out
    assert "saving" in job.log()
    assert (job.end.exit_code, job.end.signal, job.end.stopped_by) == (143, 15, name)
    assert job.end.first_failure is None


def test_program_without_signal_handler_is_terminated(job: Job) -> None:
    job.write('touch "$HPCRUN_RUN_DIR/ready"; exec sleep 1000')
    process = job.start()
    job.wait_for("ready")
    process.terminate()
    assert job.finish(process)[0] == 143
    assert job.end.stopped_by == "TERM"


@pytest.mark.slow
def test_sigterm_during_the_end_record_does_not_damage_it(job: Job) -> None:
    with (job.run.path / "jobside.sh").open("a") as script:
        run = '"$HPCRUN_JOBSIDE_PYTHON" -I -S "$HPCRUN_RUN_DIR/jobside.pyz" "$@"'
        script.write(f'jobside() {{ kill -TERM "$BASHPID"; {run}; }}\n')
    saved = job.run.path / "checkpoints/step_1"
    saved.mkdir(parents=True)
    (saved / "model.bin").write_bytes(b"weights")
    assert job.go(HPCRUN_CHECKPOINT_DIR=str(saved.parent))[0] == 0
    assert (job.end.why, job.end.checkpoint) == ("done", str(saved))


def test_sigterm_to_all_processes_is_handled(job: Job) -> None:
    job.write('touch "$HPCRUN_RUN_DIR/ready"; exec sleep 1000')
    process = job.start()
    job.wait_for("ready")
    os.killpg(process.pid, signal.SIGCONT)
    os.killpg(process.pid, signal.SIGTERM)
    assert job.finish(process)[0] == 143
    assert (job.end.stopped_by, job.end.first_failure) == ("TERM", None)


@pytest.mark.parametrize(("node", "task", "asked"), [(0, 0, "asked\n"), (0, 1, ""), (1, 0, "")])
def test_one_task_queries_slurm_for_a_preemption(
    job: Job, node: int, task: int, asked: str
) -> None:
    """Otherwise every node of a large job would query slurmctld at once."""
    program = "eval \"$(sed -n '/^asked_to_stop()/,/^}/p' harness.sh)\"\n"
    program += (
        "attempt_dir=. mode=node child=; note_preemption() { echo asked; }; asked_to_stop; wait"
    )
    env = {"SLURM_JOB_ID": "7", "HPCRUN_NODE_RANK": str(node), "SLURM_LOCALID": str(task)}
    done = subprocess.run(
        ["bash", "-uc", program],
        cwd=job.run.path,
        env={"PATH": os.environ["PATH"], **env},
        capture_output=True,
        text=True,
        check=True,
    )
    assert (done.stdout, done.stderr) == (asked, "")
    assert (job.run.path / f"told-{node}").exists()


def test_other_signals_do_not_end_the_wait(job: Job) -> None:
    job.write(
        'touch "$HPCRUN_RUN_DIR/ready"; until [ -e "$HPCRUN_RUN_DIR/go" ]; do sleep 0.02; done'
    )
    process = job.start()
    job.wait_for("ready")
    for _ in range(5):
        os.killpg(process.pid, signal.SIGCONT)
        process.send_signal(signal.SIGCHLD)
        process.send_signal(signal.SIGWINCH)
        time.sleep(0.02)
    assert process.poll() is None and job.last.end is None
    (job.run.path / "go").touch()
    assert job.finish(process)[0] == 0
    assert (job.end.exit_code, job.end.stopped_by) == (0, None)


# A bash function that other bashes inherit: a question whether a process is there is answered when
# it has gone, and a signal is passed on once it has done its work.
LATE = {
    "BASH_FUNC_kill%%": """() {
        builtin kill "$@"
        while builtin kill -0 "${@: -1}"; do sleep 0.02; done
        builtin kill "$@"
    } 2>/dev/null"""
}


def test_rank_that_ends_during_a_signal_keeps_its_exit_code(job: Job) -> None:
    program = """'trap "exit 7" TERM; : >"$HPCRUN_RUN_DIR/ready"; while :; do sleep 0.02; done'"""
    job.write(f"echo $$ >pid; RANK=0 LOCAL_RANK=0 WORLD_SIZE=1 {RANK} bash -c {program}")
    process = job.start(**LATE)
    job.wait_for("ready")
    os.kill(int((job.run.path / "pid").read_text()), signal.SIGUSR1)
    assert job.finish(process)[0] == 7
    assert (job.failure.exit_code, job.failure.signal) == (7, None)


def before_mv(job: Job, line: str) -> str:
    """Run a command before each mv of the job, which creates its records; return the PATH."""
    mv = job.run.path / "bin" / "mv"
    mv.parent.mkdir()
    mv.write_text(f'#!/bin/bash\n{line} 2>/dev/null\nexec /bin/mv "$@"\n')
    mv.chmod(0o755)
    return f"{mv.parent}:{os.environ['PATH']}"


def test_successful_end_during_the_warning_signal_is_success(job: Job) -> None:
    path = before_mv(job, 'case $* in */stop) while kill -0 "$(<pid)"; do sleep 0.02; done; esac')
    job.write('echo $PPID >pid; touch ready; until [ -e "$HPCRUN_STOP_FILE" ]; do sleep 0.02; done')
    process = job.start(PATH=path)
    job.wait_for("ready")
    process.send_signal(signal.SIGURG)
    assert job.finish(process)[0] == 143, "asked to end, completed successfully"
    assert (job.end.exit_code, job.end.signal, job.end.why) == (143, 15, "time_limit")


def test_warning_signal_before_the_body_is_handled(job: Job) -> None:
    path = before_mv(job, "[[ $* != */begin.json ]] || kill -URG $PPID")
    job.write('until [ -e "$HPCRUN_STOP_FILE" ]; do sleep 0.02; done')
    # The first one comes before the script is the harness.
    job.run.script.write_text(f"kill -URG $$\n{job.run.script.read_text()}")
    assert job.go(PATH=path)[0] == 143
    assert job.end.why == "time_limit"


def test_host_that_fails_immediately_has_failed(job: Job) -> None:
    for made in (job.run.attempts / "0/failures", job.run.logs / "0"):
        made.mkdir(parents=True)
    given = "HPCRUN_PROJECT_DIR=. HPCRUN_NODES=2 HPCRUN_RANKS_PER_NODE=1 HPCRUN_LAUNCHER=none"
    (job.run.attempts / "0/environment").write_text(f"export {given}\n")
    job.write("exit 7")
    argv = ["bash", "./harness.sh", "session", "1", "0"]
    env = {"PATH": os.environ["PATH"], "HPCRUN_TEST_MARK": job.mark, **LATE}
    with subprocess.Popen(argv, cwd=job.run.path, env=env, stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        process.stdin.write(b"ssh\n")
        process.stdin.flush()
        assert process.wait() == 7


# ---- what the processes are given


def test_node_environment_is_complete(job: Job) -> None:
    job.write('env -0 >"$HPCRUN_RUN_DIR/env"')
    assert job.go(HOSTNAME="of-another-node", SLURMD_NODENAME="n1")[0] == 0
    pairs = (job.run.path / "env").read_text().split("\0")[:-1]
    env = dict(pair.split("=", 1) for pair in pairs)
    assert env["MASTER_ADDR"] == "127.0.0.1"
    assert 12000 <= int(env["MASTER_PORT"]) < 30000
    assert env["HPCRUN_ATTEMPT"] == env["HPCRUN_NODE_RANK"] == "0"
    assert env["GLOO_SOCKET_IFNAME"] == "lo"
    assert "NCCL_SOCKET_IFNAME" not in env
    assert Path(env["HPCRUN_HOSTFILE"]).read_text() == "n1 slots=1\n"
    assert job.last.begin is not None and job.last.begin.host == "n1"


def test_interfaces_set_by_the_user_are_kept(job: Job) -> None:
    job.write('echo "interface $GLOO_SOCKET_IFNAME"')
    assert job.go(GLOO_SOCKET_IFNAME="eth7")[0] == 0
    assert "interface eth7\n" in job.log()


def test_stdin_is_passed_to_the_program(job: Job) -> None:
    job.write("cat")
    assert job.go(stdin=b"typed\n")[0] == 0
    assert "typed\n" in job.log()


@pytest.mark.slow
def test_world_of_another_size_is_not_started(job: Job) -> None:
    job.write(nodes=2)
    code, out = job.go()
    assert code == 1
    assert "the job wants 2 node(s) and has 1: " in out
    assert not (job.run.logs / "0" / "node-0.log").exists()


# ---- setup and secrets


@pytest.mark.parametrize(
    ("setup", "code"),
    [
        ("exit 0", 1),
        pytest.param("exit 4", 4, marks=pytest.mark.slow),
        pytest.param("kill -9 $$", 137, marks=pytest.mark.slow),
    ],
)
def test_setup_that_exits_before_the_launch_is_not_success(job: Job, setup: str, code: int) -> None:
    job.write(setup=setup)
    found, out = job.go()
    assert found == job.end.exit_code == code
    assert ("setup ended before the training was started" in out) == (setup == "exit 0")


@pytest.mark.slow
def test_setup_failure_with_set_e_is_recorded(job: Job) -> None:
    job.write(setup="set -eu\nfalse\necho never")
    code, out = job.go()
    assert (code, job.end.exit_code) == (1, 1)
    assert "never" not in out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("node", "directives", "stopped", "kept"),
    [
        ("true", "", False, False),
        ("false", "#SBATCH --requeue", False, False),
        ("exec sleep 1000", "#SBATCH --no-requeue", True, False),
        # The next attempt needs them.
        ("exec sleep 1000", "#SBATCH --requeue", True, True),
    ],
)
def test_secrets_are_removed_after_the_last_attempt(
    job: Job, node: str, directives: str, stopped: bool, kept: bool
) -> None:
    job.write(
        f'touch "$HPCRUN_RUN_DIR/ready"; {node}',
        setup='. "$HPCRUN_RUN_DIR/secrets.env"; [ "$TOKEN" = "a b" ] || exit 9',
        directives=directives,
    )
    job.run.secrets.write_text("export TOKEN='a b'\n")
    process = job.start()
    job.wait_for("ready")
    if stopped:
        process.terminate()
    code, out = job.finish(process)
    assert code != 9 and "a b" not in out + job.log()
    assert job.run.secrets.exists() == kept


def test_unknown_mode_is_refused(job: Job) -> None:
    done = subprocess.run(
        ["bash", str(job.run.path / "harness.sh"), "dance"],
        env={"PATH": os.environ["PATH"], "HPCRUN_RUN_DIR": str(job.run.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (1, "hpcrun: error: no such mode: dance\n")


@pytest.mark.slow
def test_environment_file_for_other_hosts_is_removed_after_a_kill(job: Job) -> None:
    written = job.run.attempts / "0" / "environment"
    job.write(setup=f"echo >{quote_bash(str(written))}; echo written; kill -KILL $$")
    code, out = job.go()
    assert code == 137 and "written" in out
    assert not written.exists()


def test_rank_gets_the_newest_complete_checkpoint(job: Job) -> None:
    """Selects the newest complete checkpoint; without Slurm nothing ends the job."""
    folder = job.run.path / "checkpoints"
    folder.mkdir()
    for step in (9, 10):
        with zipfile.ZipFile(folder / f"step-{step}.pt", "w") as file:  # the form of torch.save
            file.writestr("step", str(step))
    node = 'echo "from $HPCRUN_RESUME until <$HPCRUN_END_TIME> or $HPCRUN_STOP_FILE"'
    job.write(node, setup=f"export HPCRUN_CHECKPOINT_DIR={quote_bash(str(folder))}")
    assert job.go()[0] == 0
    newest, stop = folder / "step-10.pt", job.run.attempts / "0/stop"
    assert f"from {newest} until <> or {stop}\n" in job.log()
    assert (job.run.attempts / "0/resume").read_text() == f"{newest}\n"


def test_run_without_a_python_is_recorded_but_does_not_resume(job: Job) -> None:
    """For example on nodes whose only Python is in a container or an environment module."""
    (job.run.path / ARCHIVE).write_bytes(b"no Python reads this")
    saved = job.run.path / "checkpoints" / "step_1"
    saved.mkdir(parents=True)
    (saved / "model.bin").write_bytes(b"weights")
    code, out = job.go(HPCRUN_CHECKPOINT_DIR=str(saved.parent), HPCRUN_CHECKPOINT_KEEP="1")
    assert code == 0 and "no Python 3.6 or newer answers here" in out
    assert (job.end.exit_code, job.end.why, job.end.checkpoint) == (0, "done", None)
    assert "trained" in job.log()


def test_failed_decision_at_the_end_leaves_a_record(job: Job) -> None:
    """For example because the disk is full, or the Python was removed meanwhile."""
    with (job.run.path / "jobside.sh").open("a") as script:
        script.write('jobside() { [ "$1" != end ] || { echo "a traceback" >&2; return 1; }; }\n')
    job.write("exit 3")
    code, out = job.go(HPCRUN_SURVIVE="preempted")
    assert code == 3 and "a traceback" in out
    assert (job.end.exit_code, job.end.next) == (3, None)
    assert job.end.note == (
        "no decision was made whether the run continues: see the end of logs/batch.log"
    )


@pytest.mark.parametrize("python", pythons(), ids=lambda path: path.rpartition("/")[2])
def test_job_with_an_old_python_prunes_checkpoints_and_records_its_end(
    job: Job, python: str
) -> None:
    saved = job.run.path / "checkpoints"
    (job.run.path / "spec.yaml").touch()
    script = 'for n in 1 2 3; do sleep 0.3; mkdir -p "$HPCRUN_CHECKPOINT_DIR/step_$n"'
    job.write(f'{script}; echo weights >"$HPCRUN_CHECKPOINT_DIR/step_$n/model.bin"; done; sleep 1')
    code, out = job.go(
        HPCRUN_CHECKPOINT_DIR=str(saved),
        HPCRUN_CHECKPOINT_KEEP="1",
        HPCRUN_CHECKPOINTS_EVERY="0.2",
        HPCRUN_JOB_PYTHON=python,
    )
    assert code == 0 and "error" not in out, out
    assert "removed checkpoint step_1" in out
    assert (job.end.why, job.end.checkpoint) == ("done", str(saved / "step_3"))
