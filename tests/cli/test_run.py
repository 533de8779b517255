"""hpcrun run on a machine without Slurm: success, failure and Ctrl-C."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import signal
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.calling import ROOT, Caller
from tests.waiting import until

TRAINER = """\
import json, os, sys
print("rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], sys.argv[1:], flush=True)
for step in range(1, 6):
    print(json.dumps({"step": step, "loss": 5 - step / 2}), flush=True)
sys.exit(int(sys.argv[1]))
"""


@pytest.fixture
def trainer(hpcrun: Caller) -> None:
    """A project with a script that prints losses without importing anything."""
    hpcrun.write("train.py", TRAINER)
    hpcrun.write(
        "jobs/train.yaml",
        "script: train.py\nlauncher: srun\nargs: ['0', '{run_id}']\n"
        f"setup: {{python: {sys.executable}}}\nenv: {{TOKEN_SEEN: x}}\n",
    )


def only_run(hpcrun: Caller) -> Path:
    (run,) = hpcrun.runs.iterdir()
    return run


@pytest.mark.slow
def test_run_starts_a_bare_command(hpcrun: Caller) -> None:
    done = hpcrun.process("run", "--", "sh", "-c", 'echo "$PWD"; echo wrong >&2')
    assert done.code == 0, done
    assert f"{hpcrun.project}\n" in done.out and "wrong\n" in done.out
    assert "Running sh here\n" in done.out
    run = only_run(hpcrun)
    assert f"{run.name}: COMPLETED\n" in done.err
    assert hpcrun.left() == []
    # Other commands know the run without Slurm.
    shown = hpcrun("status", "--json")
    assert shown.code == 0 and shown.err == ""
    (state,) = shown.json["runs"]
    assert (state["state"], state["final"], state["exit_code"]) == ("COMPLETED", True, 0)
    assert (state["run_id"], state["job_id"], state["source"]) == (run.name, None, "record")
    assert f"{run.name[-4:]}  sh   COMPLETED" in hpcrun("status").out
    # Only digits would be a Slurm id, so the end of the id is prefixed by the name.
    assert "COMPLETED" in hpcrun("status", run.name[-7:]).out
    assert f"{hpcrun.project}\n" in hpcrun("logs").out
    lines = [json.loads(line) for line in hpcrun("logs", "--json").out.splitlines()]
    (wrong,) = (line for line in lines if line["line"] == "wrong")
    assert (wrong["attempt"], wrong["node"], wrong["rank"]) == (0, 0, None)
    over = hpcrun("cancel", run.name)
    assert over.code == 0 and "has already ended: COMPLETED" in over.out
    (reported,) = hpcrun("cancel", run.name, "--json").json["runs"]
    assert reported["cancelled"] is False
    files = hpcrun("show", "--json").json["files"]
    assert {"job.sbatch", "node.sh", "plan.json", "logs/0/node-0.log"} <= set(files)
    assert hpcrun("show", run.name, "--file", "job.sbatch").out.startswith("#!/bin/bash\n")
    assert hpcrun("show", run.name, "--file", "../../x").code == 2
    assert "command:\n- sh\n" in hpcrun("show", run.name).out


@pytest.mark.slow
@pytest.mark.usefixtures("trainer")
@pytest.mark.parametrize("is_acl", [False, True])
def test_files_of_a_run_are_writable_only_by_the_user(hpcrun: Caller, is_acl: bool) -> None:
    """This holds for any umask (which the job keeps), modes of the project, and default ACL."""
    (hpcrun.project / "train.py").chmod(0o666)
    if is_acl:
        # Of <sys/acl.h>: version 2; tag, permissions, id of user, group, mask and others.
        entries = [(1, 7, -1), (4, 7, -1), (0x10, 7, -1), (0x20, 7, -1)]
        packed = struct.pack("<I", 2) + b"".join(struct.pack("<HHi", *entry) for entry in entries)
        with contextlib.suppress(OSError):  # a file system without ACLs
            os.setxattr(hpcrun.project, "system.posix_acl_default", packed)
    process = hpcrun.start("run", "train", umask=0)
    out, err = process.communicate()
    assert process.returncode == 0, out + err
    run = only_run(hpcrun)
    open_ = {
        str(path.relative_to(run)) for path in (run, *run.rglob("*")) if path.stat().st_mode & 0o022
    }
    # The remaining files are output and markers, which are never executed.
    data = re.compile(r"logs/.+\.log|attempts/0/(ended/.+|launched)")
    assert {name for name in open_ if not data.fullmatch(name)} == set()
    assert "train.py" in {path.name for path in (run / "code").iterdir()}


@pytest.mark.slow
def test_follower_shows_what_a_silent_run_waits_for(hpcrun: Caller) -> None:
    hpcrun.write("slow.py", "import time; time.sleep(6); print('at last')")
    setup = f"{{python: {sys.executable}, commands: [sleep 4]}}"
    hpcrun.write("slow.yaml", f"script: slow.py\nlauncher: srun\nsetup: {setup}\n")
    done = hpcrun.process("run", "slow.yaml")
    assert done.code == 0 and done.out.count("at last") == 1, done
    told = [line for line in done.err.splitlines() if line.startswith("waiting for ")]
    setup = "waiting for its setup: modules, environment, files"
    program = "waiting for the program's first output (imports, compilation, data loading)"
    # Each is shown once; on a busy machine one phase may be over before the second check.
    assert told in ([setup, program], [setup], [program]), done


@pytest.mark.slow
@pytest.mark.usefixtures("trainer")
def test_failure_record_is_not_evaluated_by_bash(hpcrun: Caller, tmp_path: Path) -> None:
    """Bash executes commands in an array index, so a record must not reach an index."""
    record = f'{{"rank": 0, "exit_code": HOME[$(touch {tmp_path}/ran)], "signal": null}}'
    line = f"echo {shlex.quote(record)} >$HPCRUN_RUN_DIR/attempts/0/failures/0.json; exit 3"
    assert hpcrun.process("run", "--", "sh", "-c", line).code == 1
    assert not (tmp_path / "ran").exists()
    run = only_run(hpcrun)
    assert "ended with exit code 3" in (run / "logs" / "batch.log").read_text()
    end = json.loads((run / "attempts" / "0" / "end.json").read_text())
    assert (end["exit_code"], end["first_failure"]) == (3, None)


@pytest.mark.parametrize(
    "streams",
    [">&-", ">&- 2>&- <&-", ">/dev/full", ">/dev/full 2>/dev/full", "| { read -r line; }"],
)
@pytest.mark.slow
def test_closed_output_does_not_end_the_training(hpcrun: Caller, streams: str) -> None:
    lines = "for i in 1 2 3 4 5; do echo $i; sleep 0.05; done; echo done >finished"
    call = [sys.executable, "-m", "hpcrun", "run", "--", "sh", "-c", lines]
    done = subprocess.run(
        ["bash", "-c", f'set -o pipefail; "$@" {streams}', "bash", *call],
        cwd=hpcrun.project,
        env=hpcrun.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0 and b"Traceback" not in done.stderr, done
    assert json.loads((only_run(hpcrun) / "attempts/0/end.json").read_text())["exit_code"] == 0
    assert (hpcrun.project / "finished").exists() and hpcrun.left() == []


@pytest.mark.slow
@pytest.mark.usefixtures("trainer")
def test_run_trains_a_script_and_parse_shows_its_curve(hpcrun: Caller) -> None:
    done = hpcrun.process("run", "train")
    assert done.code == 0, done
    run = only_run(hpcrun)
    assert f"rank 0 of 1 ['0', '{run.name}']" in done.out
    assert (run / "code" / "train.py").read_text() == TRAINER
    report = hpcrun("parse", "--json")
    assert report.code == 0, report
    assert hpcrun("parse").code == 0
    # Editing the script later does not change the copy.
    hpcrun.write("train.py", "raise SystemExit(9)")
    assert (run / "code" / "train.py").read_text() == TRAINER


@pytest.mark.slow
@pytest.mark.usefixtures("trainer")
def test_failing_script_is_reported(hpcrun: Caller) -> None:
    done = hpcrun.process("run", "train", "--set", "args=[3]")
    assert done.code == 1, done
    run = only_run(hpcrun)
    host = os.uname().nodename
    said = f"FAILED, exit code 3; rank 0 on {host} failed first, and its log does not say why\n"
    assert f"{run.name}: {said}" in done.err
    (state,) = hpcrun("status", run.name, "--json").json["runs"]
    assert (state["state"], state["exit_code"]) == ("FAILED", 3)
    assert state["attempts"][0]["end"]["first_failure"]["rank"] == 0
    # In JSON the reason is a separate key.
    assert state["reason"] == f"rank 0 on {host} failed first: exit code 3"
    for words in (("status",), ("wait", run.name)):
        assert hpcrun(*words, "--json").json["runs"][0]["reason"] == state["reason"]
    assert "rank 0 on" in hpcrun("status", run.name).out
    assert hpcrun("logs", "-f").code == 1


@pytest.mark.slow
def test_secrets_reach_the_run_and_are_stored_nowhere(hpcrun: Caller) -> None:
    hpcrun.write(
        "jobs/secret.yaml",
        "command: [sh, -c, 'printf %s \"$TOKEN\" | md5sum']\nsecrets: [TOKEN]\n",
    )
    (hpcrun.tools / "md5sum").symlink_to("/usr/bin/md5sum")
    secret = 'it\'s $(a) "token"\n2'
    hpcrun.environ["TOKEN"] = secret
    done = hpcrun.process("run", "secret")
    assert done.code == 0, done
    digest = subprocess.run(["md5sum"], input=secret.encode(), capture_output=True, check=True)
    assert digest.stdout.decode() in done.out
    for path in only_run(hpcrun).rglob("*"):
        assert not path.is_file() or b'"token"' not in path.read_bytes(), path
    assert not (only_run(hpcrun) / "secrets.env").exists()


@pytest.mark.slow
def test_run_under_nohup_outlives_its_terminal(hpcrun: Caller) -> None:
    waits = "touch ready; until [ -e on ]; do sleep 0.1; done"
    process = hpcrun.start(
        *("run", "--", "sh", "-c", waits),
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN),
    )
    until((hpcrun.project / "ready").exists, "the command's begin")
    process.send_signal(signal.SIGHUP)
    (hpcrun.project / "on").touch()
    out, err = process.communicate()
    assert process.returncode == 0, out + err


@pytest.mark.slow
@pytest.mark.parametrize("name", ["INT", "TERM"])
def test_signal_ends_the_run_and_all_its_processes(hpcrun: Caller, name: str) -> None:
    # A child in its own session, which no signal to a process group reaches.
    process = hpcrun.start("run", "--", "sh", "-c", "setsid sleep 1000 & touch ready; sleep 1000")
    until((hpcrun.project / "ready").exists, "the command's begin")
    process.send_signal(signal.Signals[f"SIG{name}"])
    _, err = process.communicate()
    assert process.returncode == 130
    assert b"stopping the run" in err and b"Traceback" not in err
    assert hpcrun.left() == []
    (state,) = hpcrun("status", "--json").json["runs"]
    assert (state["state"], state["final"], state["exit_code"]) == ("CANCELLED", True, 143)


@pytest.mark.slow
def test_run_can_be_cancelled_from_another_terminal(hpcrun: Caller) -> None:
    process = hpcrun.start("run", "--", "sh", "-c", "touch ready; exec sleep 1000")
    until((hpcrun.project / "ready").exists, "the command's begin")
    done = hpcrun("cancel", only_run(hpcrun).name)
    assert done.code == 0 and "was RUNNING and is being cancelled" in done.out
    _, err = process.communicate()
    assert process.returncode == 1 and b"CANCELLED" in err
    assert hpcrun.left() == []


@pytest.mark.slow
def test_killed_batch_script_is_detected(hpcrun: Caller) -> None:
    process = hpcrun.start("run", "--", "sh", "-c", "touch ready; exec sleep 1000")
    until((hpcrun.project / "ready").exists, "the command's begin")
    begin = json.loads((only_run(hpcrun) / "attempts" / "0" / "begin.json").read_text())
    os.kill(begin["pid"], signal.SIGKILL)
    _, err = process.communicate()
    assert process.returncode == 1
    assert b"LOST" in err and b"its batch script was killed" in err
    assert hpcrun.left() == []


@pytest.mark.slow
def test_closed_pipe_is_not_an_error(hpcrun: Caller) -> None:
    write = "i=0; while [ $i -lt 30000 ]; do echo $i; i=$((i+1)); done"
    hpcrun.process("run", "--", "sh", "-c", write)
    for verb in ("logs", "logs -f", "logs --json", "jobs"):
        process = hpcrun.start(*verb.split())
        assert process.stdout is not None
        process.stdout.close()
        process.stdout = None
        _, err = process.communicate()
        assert process.returncode == 141, verb
        assert b"Traceback" not in err and b"BrokenPipe" not in err
