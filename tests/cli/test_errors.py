"""User mistakes: exit code 2, the problem with its location, a fix, and never a traceback."""

from __future__ import annotations

import errno
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.calling import ROOT, Caller, Done, replay


def is_clear(done: Done, *message: str) -> None:
    """Assert the common properties of all refusals."""
    assert done.code == 2, done
    assert done.out == "", done
    assert "Traceback" not in done.err, done
    assert re.match(r"(error: |Usage: )", done.err), done
    for text in message:
        assert text in done.err, done


@pytest.fixture(autouse=True)
def a_project(hpcrun: Caller) -> None:
    hpcrun.write("train.py", "")
    hpcrun.write("good.yaml", "script: train.py\n")
    hpcrun.write("hpcrun.yaml", f'runs_dir: "{hpcrun.runs}"\npython: python3\n')


@pytest.mark.parametrize("argv", [[], ["sandbox"]])
def test_call_without_a_command_shows_the_help(hpcrun: Caller, argv: list[str]) -> None:
    done = hpcrun.process(*argv)
    text = done.out + done.err  # click before 8.2 prints it and exits with 0
    assert text.startswith("Usage: hpcrun ") and text.count("Usage: ") == 1, done
    assert "error" not in text.replace("Exit codes", "") and "\n  fix: " not in text


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["dance"], ["no such command: dance"]),
        (["sumbit"], ["no such command: sumbit. Did you mean submit?"]),
        (["ls"], ["no such command: ls", "hpcrun status (runs), hpcrun jobs"]),
        (["--dance"], ["No such option"]),
        (["submit"], ["name a job (hpcrun jobs lists them), or give a command after --"]),
        (["submit", "--"], ["give a command after --"]),
        (["submit", "zero2-4gpus"], ["zero2-4gpus: no such job", "did you mean zero2-4gpu?"]),
        (["submit", "no/such.yaml"], ["no/such.yaml: no such job file"]),
        (["submit", "no/such.py"], ["no/such.py: no such job file"]),
        (["submit", "good.yaml", "--nodes", "0"], ["--nodes"]),
        (["submit", "good.yaml", "--nodes", "two"], ["--nodes"]),
        (["submit", "good.yaml", "--time", "soon"], ["error: --time: expected ", 'got "soon"']),
        (["submit", "good.yaml", "--time", "-5"], ["error: --time: expected "]),
        (["submit", "good.yaml", "--name", ""], ["error: --name: "]),
        (["submit", "good.yaml", "--name", "a\nb"], ["error: --name: "]),
        (["run", "--name", "", "--", "true"], ["error: --name: "]),
        (["submit", "good.yaml", "--set", "resources.time=soon"], ["--set: resources.time: "]),
        (["submit", "good.yaml", "--set", "bath=1"], ["--set: bath: unknown key; did you mean"]),
        (["submit", "good.yaml", "--set", "batch"], ["--set"]),
        (["submit", "good.yaml", "--set", "precision=fp17"], ["--set: precision: "]),
        (
            ["submit", "good.yaml", "--cluster", "moon"],
            ["moon: no such cluster", "hpcrun init --cluster moon --user"],
        ),
        (
            ["status", "--cluster", "./hpcrun.yaml"],
            ["--cluster ./hpcrun.yaml: a name, not a path", "clusters/NAME.yaml"],
        ),
        (["submit", "good.yaml", "--cluster", "sandbox"], ["the sandbox is not running"]),
        (["submit", ""], ["empty job name"]),
        (["submit", "good.yaml", "--after", ""], ["--after: expected a run or a job id"]),
        (["submit", "good.yaml", "--after", "nothing"], ["nothing: no such run"]),
        (["run", "zero2-8gpu-2node"], ["this is one machine"]),
        (["status", "nothing"], ["nothing: no such run in "]),
        (["status", "-n", "0"], ["-n"]),
        (["logs"], ["no runs yet in "]),
        (["logs", "nothing"], ["nothing: no such run"]),
        (["cancel"], ["Missing argument"]),
        (["cancel", "nothing"], ["nothing: no such run"]),
        (["show"], ["no runs yet in "]),
        (["show", "good.yaml", "--file", "x"], ["good.yaml is a job and has no files yet"]),
        (["parse"], ["no runs yet in "]),
        (["parse", "no.log"], ["no.log: no such file, run or job"]),
        (["why", "no.log"], ["no.log: no such file, run or job"]),
        (["schema", "dance"], ["'job', 'cluster'"]),
        (["sandbox", "dance"], ["No such command"]),
        (["sandbox", "up", "--nodes", "0"], ["--nodes"]),
    ],
    ids=lambda value: " ".join(value) if value and isinstance(value[0], str) else None,
)
def test_command_line_mistakes_are_reported(
    hpcrun: Caller, argv: list[str], message: list[str]
) -> None:
    is_clear(hpcrun(*argv), *message)


@pytest.mark.parametrize("name", ["", " "])
@pytest.mark.parametrize(
    "verb",
    [
        *("cancel", "clean -y", "compare", "logs", "parse", "requeue", "resubmit", "show"),
        *("status", "top", "wait"),
    ],
)
def test_empty_name_matches_no_run(hpcrun: Caller, verb: str, name: str) -> None:
    """An empty name, as from an unset variable, is a prefix of every run id."""
    run = hpcrun.runs / "20261120-081455-train-7k3q"
    (run / "attempts").mkdir(parents=True)
    is_clear(hpcrun(*verb.split(), name), "empty run name", "fix: ")
    assert run.exists()


def test_deleted_current_folder_is_reported(hpcrun: Caller) -> None:
    gone = hpcrun.project / "gone"
    gone.mkdir()
    program = "import os, sys; os.rmdir(os.getcwd()); sys.argv = ['hpcrun', 'status']; "
    done = subprocess.run(
        [sys.executable, "-c", program + "from hpcrun.cli.main import main; main()"],
        cwd=gone,
        env=hpcrun.environ | {"PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith(
        "error: the current directory no longer exists\n  fix: cd to an existing directory"
    )


@pytest.mark.parametrize(
    ("name", "fix"),
    [
        ("train.py", "hpcrun init train.py drafts a job for it; hpcrun submit -- python train.py"),
        ("./train.py", "hpcrun init ./train.py drafts a job for it"),
        (
            "my run.sh",
            "hpcrun submit 'my run.sh' runs it as sbatch would, once its first line is #!",
        ),
        ("old.sbatch", "hpcrun submit old.sbatch runs it as sbatch would"),
    ],
)
def test_script_given_as_a_job_is_refused(hpcrun: Caller, name: str, fix: str) -> None:
    hpcrun.write(name, "echo hi\n")
    is_clear(hpcrun("submit", name), f"{name} is a script, not a job", fix)
    hpcrun.write(f"jobs/{name}.yaml", "script: train.py\n")
    assert "/" in name or hpcrun("submit", name, "--dry-run").code == 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("script: trian.py", ["script: ", "trian.py: no such file", "did you mean train.py?"]),
        ("script: nothing-like-it", ["no such file", "paths start at "]),
        ("resources: {gpus_per_nod: 1}", ["bad.yaml:1: resources.gpus_per_nod: unknown key"]),
        ("script: [", ["bad.yaml:"]),
        ("- a\n- b", ["bad.yaml:"]),
        ("a: 1\nb: 2\nc: 3", ["bad.yaml:1: a: ", "bad.yaml:2: b: ", "bad.yaml:3: c: "]),
        ("script: train.py\nscript: x", ["bad.yaml:2: script: "]),
        ("extends: nothing", ["bad.yaml:1: extends: nothing: no such job"]),
        ("extends: bad.yaml", ["extends: a circle"]),
        ("script: train.py\nmodule: x", ["bad.yaml:2: module: script is given too"]),
        (
            "script: train.py\nargs: ['{nothing}']",
            ["bad.yaml: args[0]: {nothing}: no such placeholder"],
        ),
        (
            "script: trian.py\nargs: ['{nothing}']\nsetup: {venv: none}",
            ["trian.py: no such file; did you mean train.py?", "none/bin/python", "{nothing}"],
        ),
        ("module: train.nothing", ["module: train.nothing: the project has no "]),
        (
            "batch: {micro_batch_per_gpu: 1, gradient_accumulation_steps: 1}\n"
            "deepspeed: {config: {train_batch_size: 7, bf16: {enabled: false}}}",
            ["train_batch_size: 7 contradicts the job's 1", "config.bf16.enabled"],
        ),
        ("script: train.py\nenv: {MASTER_PORT: '1'}", ["hpcrun sets this variable itself"]),
        ("script: train.py\nsetup: {venv: none}", ["setup.venv: ", "none/bin/python"]),
        ("script: train.py\nconda: x", ["bad.yaml:2: conda: "]),
        (f"script: train.py\nname: {'x' * 1025}", ["name: 1025 bytes long"]),
    ],
)
def test_job_file_mistakes_are_reported(hpcrun: Caller, text: str, message: list[str]) -> None:
    hpcrun.write("bad.yaml", text + "\n")
    for verb in (["submit", "--dry-run"], ["run"]):
        is_clear(hpcrun(*verb, "bad.yaml"), *message)
    assert not hpcrun.runs.exists()


@pytest.mark.parametrize(
    ("profile", "message"),
    [
        ("partitons: {}", ["hpcrun.yaml:1: partitons: unknown key; did you mean partitions?"]),
        ("runs_dir: $NOWHERE/runs", ["runs_dir: $NOWHERE/runs: 'NOWHERE' is not set"]),
        ("runs_dir: a$", ["runs_dir: a$: a $ that is not followed by a variable name"]),
        ("python: /no/such/python", ["hpcrun.yaml: python: /no/such/python: no such interpreter"]),
        ("gpu_types: {a100: {gres: a}}", ["resources.gpu_type: h100: cluster default has a100"]),
        (
            "partitions: {p: {gpus_per_node: 2}}",
            ["resources.gpus_per_node: 4: partition p has 2 GPUs a node"],
        ),
    ],
)
def test_cluster_profile_mistakes_are_reported(
    hpcrun: Caller, profile: str, message: list[str]
) -> None:
    setup = "" if "python" in profile else "setup: {python: python3}\n"
    resources = "resources: {gpus_per_node: 4, gpu_type: h100}\n"
    hpcrun.write("wide.yaml", f"script: train.py\n{setup}{resources}")
    hpcrun.write("hpcrun.yaml", profile + "\n")
    is_clear(hpcrun("submit", "wide.yaml", "--dry-run"), *message)


def test_all_problems_of_a_job_are_reported_at_once(hpcrun: Caller) -> None:
    hpcrun.write("bad.yaml", "nodez: 1\nresources: {nodes: 0, time: soon}\nbatch: 3\n")
    done = hpcrun("submit", "bad.yaml", "--set", "precision=x")
    is_clear(done)
    assert done.err.count("error: ") == 5
    assert [line.split(":")[1] for line in done.err.splitlines()][:4] == [
        " bad.yaml",
        " bad.yaml",
        " bad.yaml",
        " bad.yaml",
    ]


@pytest.mark.parametrize("name", ["bad.yaml", "hpcrun.yaml"])
@pytest.mark.parametrize(
    ("data", "message"),
    [(b"name: \xff\n", "not UTF-8 text (byte 6)"), (b"name: \x00\n", ":1: ")],
)
def test_binary_files_are_refused(hpcrun: Caller, name: str, data: bytes, message: str) -> None:
    job = "bad.yaml" if name == "bad.yaml" else "good.yaml"
    (hpcrun.project / name).write_bytes(data)
    is_clear(hpcrun("submit", job, "--dry-run"), name, message)


def test_folder_given_as_a_file_is_refused(hpcrun: Caller) -> None:
    (hpcrun.project / "folder.yaml").mkdir()
    is_clear(hpcrun("submit", "folder.yaml"), "folder.yaml: no such job file")


def test_invalid_template_is_refused(hpcrun: Caller) -> None:
    hpcrun.write(
        "templates/job.sbatch.j2", "{% extends 'hpcrun/job.sbatch.j2' %}\n{% block nccl %}{{ oops"
    )
    is_clear(
        hpcrun("submit", "good.yaml", "--dry-run"), "job.sbatch.j2:2: ", "fix: fix the template"
    )


def test_unset_secrets_are_refused(hpcrun: Caller) -> None:
    hpcrun.write("secret.yaml", "script: train.py\nsecrets: [TOKEN, OTHER]\n")
    done = hpcrun("submit", "secret.yaml")
    is_clear(done, "secrets: TOKEN, OTHER: not set in your environment", "export TOKEN=...")
    assert not hpcrun.runs.exists()


def test_ambiguous_cluster_is_refused(hpcrun: Caller) -> None:
    (hpcrun.project / "hpcrun.yaml").unlink()
    clusters = Path(hpcrun.environ["HOME"]) / ".config" / "hpcrun" / "clusters"
    clusters.mkdir(parents=True)
    for name in ("one", "two"):
        (clusters / f"{name}.yaml").write_text(f"name: {name}\nruns_dir: /nonexistent\n")
    is_clear(hpcrun("status"), "several clusters are configured: one, two", "HPCRUN_CLUSTER")
    is_clear(hpcrun("status", "--cluster", "three"), "there are one, two")
    assert hpcrun("status", "--cluster", "two").code == 0


def test_errors_have_no_escape_sequences_without_a_terminal(hpcrun: Caller) -> None:
    for argv in (["submit", "nothing"], ["jobs"], ["submit", "good.yaml", "--dry-run"]):
        done = hpcrun(*argv)
        assert "\x1b" not in done.out + done.err


def test_full_disk_error_names_source_and_target(
    hpcrun: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(source: object, target: object, **_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(source), None, str(target))

    monkeypatch.setattr(shutil, "copy2", full)
    done = hpcrun("submit", "good.yaml")
    assert done.code == 1, done
    message = rf"error: {hpcrun.project}/\S+ to {hpcrun.runs}/\S+: No space left on device\n"
    assert re.match(message + "  fix: is the file system full, or your quota\\?\n", done.err), done


@pytest.mark.slow
def test_job_id_is_reported_if_stdout_cannot_be_written(hpcrun: Caller) -> None:
    hpcrun.write("job.yaml", "command: [hostname]\nresources: {gpus_per_node: 0}\n")
    replay(hpcrun.tools, "sbatch", (0, "7\n", ""))
    for words in (
        ["submit", "job.yaml"],
        ["submit", "job.yaml", "--json"],
        ["resubmit", "7", "--fresh"],
    ):
        with Path("/dev/full").open("wb") as full:
            process = hpcrun.start(*words, stdout=full)
            _, err = process.communicate()
        assert process.returncode == 1 and b"submitted: job 7\n" in err, err
