"""Checks before a submission: all problems at once, and nothing written."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.calling import Caller, replay
from tests.cli.job_checks import dry, errors, set_profile
from tests.json_schemas import check_json

PARSER = (
    "import argparse\np = argparse.ArgumentParser()\np.add_argument('--batch_size')\n"
    "p.add_argument('--data')\np.parse_args()\n"
)


@pytest.fixture(autouse=True)
def project(hpcrun: Caller) -> None:
    """Set up a profile and a script with arguments."""
    set_profile(hpcrun, sys.executable)
    hpcrun.write("train.py", PARSER)


def notes(hpcrun: Caller, text: str, *more: str) -> list[str]:
    done = dry(hpcrun, text, *more)
    assert done.code == 0, done
    shown = [line.removeprefix("note: ") for line in done.err.splitlines()]
    return [note for note in shown if " by default: " not in note]  # the note on CPUs per GPU


GOOD = "script: train.py\n"


def test_checks_report_everything_at_once_with_errors_first(hpcrun: Caller) -> None:
    done = dry(
        hpcrun,
        "script: trian.py\nresources: {gpus_per_node: 8, time: 2-00}\n"
        "env: {WANDB_API_KEY: 0123456789abcdef0123456789abcdef01234567}\n",
    )
    message = done.err.splitlines()
    assert [line.partition(":")[0].strip() for line in message] == [*["error"] * 3, "fix", "note"]
    assert message[0].endswith("trian.py: no such file; did you mean train.py?")
    assert "hpcrun.yaml: partitions.gpu.gpus_per_node, read on 2026-11-01); " in message[1]
    assert ": resources.time: 2-00: partition gpu gives a job 1-00 at most (" in message[2]
    assert message[3] == (
        "  fix: if the cluster has changed, run hpcrun init; --no-check submits the job anyway"
    )
    assert message[4].startswith("note: env.WANDB_API_KEY: appears to be a secret, ")


def test_no_check_turns_problems_into_notes(hpcrun: Caller) -> None:
    job = GOOD + "resources: {gpus_per_node: 8}"
    [note] = notes(hpcrun, job, "--no-check")
    assert note.startswith("--no-check: resources.gpus_per_node: 8: partition gpu has 4 GPUs")
    done = dry(hpcrun, job, "--no-check", "--json")
    check_json("submit", done.json)
    assert done.err == "" and done.json["notes"] == [note]
    assert json.loads(done.json["plan.json"])["notes"] == [note]


def test_limits_are_those_of_the_selected_partition(hpcrun: Caller) -> None:
    job = GOOD + "resources: {gpus_per_node: 8}"
    assert len(errors(hpcrun, job)) == 1
    assert notes(hpcrun, job, "--partition", "big") == []
    assert len(notes(hpcrun, job, "--partition", "gpu,big")) == 0


@pytest.mark.parametrize("flag", ["--dry-run", "--test-only"])
def test_every_submitting_command_runs_the_same_checks(hpcrun: Caller, flag: str) -> None:
    hpcrun.write("job.yaml", GOOD + "resources: {gpus_per_node: 8}")
    calls = replay(hpcrun.project.parent / "bin", "sbatch", (0, "7\n", ""))
    for words in ([flag], [flag, "--json"], []):
        done = hpcrun("submit", "job.yaml", *words)
        assert done.code == 2 and "gpus_per_node" in done.err
    assert not calls.exists() and not hpcrun.runs.exists()


def test_submit_json_contains_notes(hpcrun: Caller) -> None:
    replay(hpcrun.project.parent / "bin", "sbatch", (0, "7\n", ""))
    hpcrun.write("job.yaml", GOOD + "args: [--batchsize, 3]")
    shown = hpcrun("submit", "job.yaml", "--no-check", "--json").json
    check_json("submit", shown)
    [note] = shown["notes"]
    fault = "args: --batchsize: train.py has no such argument; did you mean --batch_size?"
    assert note == f"--no-check: {fault}"
    # Notes are printed first.
    lines = hpcrun("submit", "job.yaml", "--no-check").out.splitlines()
    assert lines[1] == f"  note      {note}"


def test_only_json_contains_notes(hpcrun: Caller) -> None:
    message = "sbatch: Job 7 to start at 2026-11-22T00:00:00 using 4 processors on nodes n1 in "
    replay(hpcrun.project.parent / "bin", "sbatch", (0, "", message + "partition gpu\n"))
    hpcrun.write("job.yaml", GOOD + "args: [--batchsize, 3]")
    shown = hpcrun("submit", "job.yaml", "--test-only", "--no-check", "--json").json
    check_json("submit", shown)
    assert len(shown["notes"]) == 1


def test_sweep_is_checked_once_for_all_runs(hpcrun: Caller) -> None:
    sweep = GOOD + "sweep: {lr: [1, 2, 3]}\nargs: [--data=data/x.txt, --lr, '{lr}']\n"
    (hpcrun.project / "data").mkdir()
    assert errors(hpcrun, sweep) == ["args: --lr: train.py has no such argument"]
    sweep = sweep.replace("--lr,", "--batch_size,")
    shown = notes(hpcrun, sweep)
    assert shown == ["args: --data data/x.txt: the project has no such file"]
    done = dry(hpcrun, sweep, "--json")
    check_json("submit", done.json)
    assert done.json["notes"] == shown
    [message, *_] = errors(hpcrun, sweep.replace("3]", "3, 4]"))
    assert message.startswith("sweep: 4 runs: an array has 3 tasks at most (")
    replay(hpcrun.project.parent / "bin", "sbatch", (0, "7\n", ""))
    check_json("submit", hpcrun("submit", "job.yaml", "--no-check", "--json").json)


# ---- scripts


def test_script_with_a_syntax_error_is_refused(hpcrun: Caller) -> None:
    hpcrun.write("train.py", "x = 1\nif x\n    pass\n")
    [message] = errors(hpcrun, GOOD)
    assert message.startswith("script: ") and message.endswith("train.py:2: expected ':'")
    # Another Python may support newer syntax, or the training Python is unknown.
    set_profile(hpcrun, "python3")
    [note] = notes(hpcrun, GOOD)
    assert "train.py:2: expected ':', according to Python 3." in note


def interpreter(folder: Path, version: str) -> str:
    """Create an environment of a Python version."""
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python").touch(0o755)
    (folder / "pyvenv.cfg").write_text(f"home = /usr/bin\nversion = {version}\n")
    return str(folder / "bin" / "python")


def test_script_is_parsed_for_the_version_of_the_training_python(hpcrun: Caller) -> None:
    newer = f"3.{sys.version_info[1] + 1}.0"
    set_profile(hpcrun, interpreter(hpcrun.project.parent / "newer", newer))
    hpcrun.write("train.py", "lazy import what we do not know\n")
    [syntax, architecture] = notes(hpcrun, GOOD)
    assert ": invalid syntax, according to Python 3." in syntax
    assert architecture.endswith("could not be checked for torch: Exec format error")
    set_profile(hpcrun, interpreter(hpcrun.project.parent / "older", "3.9.1"))
    hpcrun.write("train.py", "match 1:\n    case 1: pass\n")
    [message] = errors(hpcrun, GOOD)
    assert "train.py:" in message and message.endswith("(Python 3.9 trains)")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\x7fELF\0\0\0", "not Python: it has a NUL byte"),
        (b"#!/bin/bash\necho hi\n", "this is a script for bash; write command: [bash, train.py]"),
        (
            b"#!/usr/bin/env -S bash -e\n",
            "this is a script for bash; write command: [bash, train.py]",
        ),
        (b"# coding: nonsense\n", "unknown encoding"),
        (b"x = '\xff'\n", "'utf-8' codec can't decode byte 0xff"),
    ],
)
def test_script_that_is_not_python_is_refused(hpcrun: Caller, data: bytes, message: str) -> None:
    (hpcrun.project / "train.py").write_bytes(data)
    [problem] = errors(hpcrun, GOOD)
    assert problem.startswith("script: ") and message in problem


@pytest.mark.slow
@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"x = 1  # " + b"long " * 12_000_000,  # 60 MB, which is not read
        b"x = " + b"-" * 200_000 + b"1\n",
        b"x = a" + b".b" * 200_000 + b"\n",
        b"x = " + b"(" * 150 + b")" * 150 + b"\n",
        b"import re\nre.compile('\\d')\n",  # a warning of the script, not of hpcrun
        "# -*- coding: latin-1 -*-\nx = 'é'\n".encode("latin-1"),
        b"\xef\xbb\xbfx = 1\n",
        b"PK\x03\x04 a zip archive \0",
    ],
    ids=range(9),
)
def test_other_files_are_accepted(hpcrun: Caller, data: bytes) -> None:
    (hpcrun.project / "train.py").write_bytes(data)
    assert notes(hpcrun, GOOD) == []


def test_unreadable_files_do_not_block_the_checks(hpcrun: Caller) -> None:
    os.mkfifo(hpcrun.project / "fifo.py")
    (hpcrun.project / "loop.py").symlink_to("loop.py")
    (hpcrun.project / "folder.py").mkdir()
    for name, message in (
        ("fifo.py", "not a file that could be copied and read"),
        ("loop.py", "cannot be read: Too many levels of symbolic links"),
        ("folder.py", "a folder; name the Python file in it"),
        ("nothing/at/all.py", "no such file; paths start at "),
        ("train.py/x", "no such file; "),
    ):
        [problem] = errors(hpcrun, f"script: {name}")
        assert message in problem, problem


def test_variables_read_by_project_modules_are_considered(hpcrun: Caller) -> None:
    job = GOOD + "batch: {micro_batch_per_gpu: 8}"
    [note] = notes(hpcrun, job)
    assert note.startswith(
        "batch.micro_batch_per_gpu: found no argument that passes it to train.py, "
    )
    assert note.endswith('args: [--batch_size, "{micro_batch_per_gpu}"]')
    hpcrun.write("train.py", "from mine import settings\n")
    hpcrun.write("mine/__init__.py", "from .deep import batch\n")
    hpcrun.write("mine/settings.py", "import os\n")
    hpcrun.write("mine/deep.py", "import os\nbatch = os.environ['HPCRUN_MICRO_BATCH_PER_GPU']\n")
    assert notes(hpcrun, job) == []


def test_arguments_that_end_the_script_are_refused(hpcrun: Caller) -> None:
    fault = "args: --batchsize: train.py has no such argument; did you mean --batch_size?"
    assert errors(hpcrun, GOOD + "args: [--batchsize, 3]") == [fault]
    hpcrun.write("train.py", PARSER.replace("parse_args", "parse_known_args"))
    doubt = "args: --batchsize: did you mean --batch_size, of train.py?"
    job = GOOD + "args: [--batchsize, 3, --data, data.txt]"
    assert notes(hpcrun, job)[0] == doubt


def test_hydra_options_precede_overrides(hpcrun: Caller) -> None:
    hpcrun.write("train.py", "import hydra\n@hydra.main()\ndef main(cfg): ...\nmain()\n")
    words = ["--", "--config-name=mine", "lr=1e-3", "--multirun"]
    script = dry(hpcrun, GOOD + "args: [bs=4]", "--json", *words).json["node.sh"]
    rank = script[script.index("train.py") :]
    order = [rank.index(word) for word in ("--config-name=mine", "--multirun", "bs=4", "lr=1e-3")]
    assert order == sorted(order)
    [fault] = errors(hpcrun, GOOD + "args: [bs=4]", "--", "--lr=1")
    assert fault.startswith("args: --lr: train.py has no such argument; did you mean lr=VALUE?")
    # A script that only instantiates objects with Hydra parses its arguments differently.
    hpcrun.write("train.py", "import fire\nfrom hydra.utils import instantiate\nfire.Fire()\n")
    script = dry(hpcrun, GOOD + "args: [bs=4]", "--json", "--", "--lr", "1").json["node.sh"]
    assert script.index("bs=4") < script.index("--lr")


def venv_of(hpcrun: Caller) -> Path:
    """Create an environment with a Python and nothing else."""
    venv = hpcrun.project.parent / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    return venv


def test_python_without_required_packages_is_refused(hpcrun: Caller) -> None:
    venv = venv_of(hpcrun)
    python = venv / "bin/python"
    job = f"{GOOD}setup: {{venv: {venv}}}\n"
    [fault] = errors(hpcrun, job)
    assert fault.endswith(
        f"{python} has no torch, which launcher torchrun needs; {python} -m pip install torch"
    )
    [fault] = errors(hpcrun, job + "framework: accelerate")
    assert "has no torch and no accelerate, which framework accelerate needs; " in fault
    [note] = notes(hpcrun, job, "--no-check")
    assert note.startswith("--no-check: ")
    # The Python is not queried if nothing is needed, or if earlier setup may change it.
    assert notes(hpcrun, job + "launcher: srun\nresources: {gpus_per_node: 1}") == []
    [note] = notes(hpcrun, job.replace("}", ", modules: [torch]}"))
    assert note.endswith("has no torch here: the job's setup must provide it")
    # The project's own module counts, and so does one that is installed in the meantime.
    hpcrun.write("torch.py", "raise ImportError('never imported')")
    assert notes(hpcrun, job) == []
    (hpcrun.project / "torch.py").rename(hpcrun.project.parent / "torch.py")
    assert notes(hpcrun, f"{job}env: {{PYTHONPATH: /none:..}}\n") == []
    [note] = notes(hpcrun, job + "env: {PYTHONPATH: $PACKAGES}")
    assert note.endswith("must provide it")
    (packages,) = venv.glob("lib/python3*/site-packages")
    (packages / "torch").mkdir()
    (packages / "torch/__init__.py").write_text("raise ImportError('never imported')")
    assert notes(hpcrun, job) == []


def test_python_with_all_packages_is_queried_once(hpcrun: Caller) -> None:
    venv = venv_of(hpcrun)
    (packages,) = venv.glob("lib/python3*/site-packages")
    (packages / "torch.py").write_text("")
    asked = venv / "asked"
    start = f"open({str(asked)!r}, 'a').write('x')"
    (packages / "sitecustomize.py").write_text(start)
    job = f"{GOOD}setup: {{venv: {venv}}}\n"
    for _ in range(3):
        assert notes(hpcrun, job) == []
    assert asked.read_text() == "x"
    (packages / "torch.py").unlink()
    assert len(errors(hpcrun, job)) == 1


@pytest.mark.parametrize(
    ("answer", "is_error"), [((0, "gpu|1|1|1|idle|n1||\n", ""), True), ((1, "", "no"), False)]
)
def test_partition_missing_in_the_profile_is_looked_up_in_slurm(
    hpcrun: Caller, answer: tuple[int, str, str], is_error: bool
) -> None:
    replay(hpcrun.project.parent / "bin", "sinfo", answer)
    hint = "not among those of "
    if is_error:
        [fault] = errors(hpcrun, GOOD, "--partition", "bigg")
        assert f"partition: bigg: no such partition; {hint}" in fault
        assert fault.endswith("did you mean big?")
    else:
        [note] = notes(hpcrun, GOOD, "--partition", "bigg")
        assert note.startswith("partition bigg: " + hint)


def test_files_used_from_the_project_are_noted(hpcrun: Caller) -> None:
    hpcrun.write("train.py", "import os, sys\nsys.path.insert(0, os.getcwd())\nopen('conf.yaml')\n")
    [path] = notes(hpcrun, GOOD)
    assert path.startswith(
        "train.py:2: sys.path.insert(0, os.getcwd()) imports the project's current files "
    )
    hpcrun.write("conf.yaml", "")
    [_, file] = notes(hpcrun, GOOD)
    assert file.startswith("train.py:3: conf.yaml is read from the project when the job runs, not ")
    assert notes(hpcrun, GOOD + "snapshot: false") == []
    hpcrun.write("train.py", "")
    [word] = notes(hpcrun, GOOD + "args: [--config, conf.yaml]")
    assert word.startswith(
        "args: --config conf.yaml: read from the project when the job runs, not "
    )
    assert notes(hpcrun, GOOD + "args: ['--config={code_dir}/conf.yaml', --data, conf.yaml]") == []


def test_search_paths_into_the_project_are_noted(hpcrun: Caller) -> None:
    venv = venv_of(hpcrun)
    (packages,) = venv.glob("lib/python3*/site-packages")
    (packages / "torch.py").write_text("")
    (packages / "__editable__.mine.pth").write_text(f"{hpcrun.project}/src\n")
    (packages / "flat.pth").write_text(f"{hpcrun.project}\n")
    job = f"{GOOD}setup: {{venv: {venv}}}\n"
    [note] = notes(hpcrun, job)
    assert note.startswith("an editable install: src: imports the project's current files when")
    assert note.endswith('env: {PYTHONPATH: "{code_dir}:{code_dir}/src"} selects those of the copy')
    [note] = notes(hpcrun, GOOD + "env: {PYTHONPATH: .}")
    assert note.startswith("env.PYTHONPATH: .: ")
    [note] = notes(hpcrun, GOOD + "setup: {commands: ['export PYTHONPATH=$PWD/lib']}")
    assert note.startswith("setup.commands: $PWD/lib: ")


def test_data_missing_from_the_copy_is_noted(hpcrun: Caller) -> None:
    text = "from pathlib import Path\nHERE = Path(__file__).parent\n"
    hpcrun.write("train.py", text + "open(HERE / 'data' / 'train.bin')\nopen(HERE / 'logs')\n")
    hpcrun.write("data/train.bin", "")
    hpcrun.write("logs/a", "")
    assert notes(hpcrun, GOOD) == []
    git(hpcrun, "init", "-q")
    hpcrun.write(".gitignore", "data/*\nlogs\n")
    found = notes(hpcrun, GOOD)
    assert found[-1].startswith("train.py finds data/train.bin by __file__, and git ignores it: ")
    assert len(found) == 1 and notes(hpcrun, GOOD + "snapshot: false") == []


def test_data_below_a_root_that_a_library_finds_is_noted(hpcrun: Caller) -> None:
    hpcrun.write("train.py", "import rootutils\nrootutils.setup_root(__file__)\n")
    hpcrun.write("data/train.bin", "")
    hpcrun.write("data/.gitkeep", "")
    hpcrun.write(".gitignore", "/data/\n")
    git(hpcrun, "init", "-q")
    git(hpcrun, "add", "-f", "data/.gitkeep")
    (note,) = notes(hpcrun, GOOD)
    assert "git ignores data, so it is not in the copy" in note
    assert '"{project_dir}/data"' in note
    assert notes(hpcrun, GOOD + 'args: ["data={project_dir}/data"]') == []
    (hpcrun.project / "data/train.bin").unlink()
    assert notes(hpcrun, GOOD) == notes(hpcrun, GOOD + "snapshot: false") == []


def test_module_jobs_are_checked(hpcrun: Caller) -> None:
    hpcrun.write("pkg/__init__.py", "")
    hpcrun.write("pkg/train.py", PARSER)
    assert notes(hpcrun, "module: pkg.train\nargs: [--batch_size, 3]") == []
    [fault] = errors(hpcrun, "module: pkg.train\nargs: [--batchsize, 3]")
    assert fault.startswith("args: --batchsize: pkg.train has no such argument")
    [message] = errors(hpcrun, "module: pkg")
    assert message.startswith("module: pkg: a package, and it has no ")
    [message] = errors(hpcrun, "module: pkg.trian")
    assert "module: pkg.trian: the project has no " in message
    [message] = errors(hpcrun, "module: installed.elsewhere")
    assert "neither the project nor " in message
    [note] = notes(hpcrun, "module: installed.elsewhere\nsetup: {commands: [make]}")
    assert note.endswith("has no installed.elsewhere here: the job's setup must provide it")


def git(hpcrun: Caller, *words: str, cwd: Path | None = None) -> None:
    identity = ["-c", "user.name=me", "-c", "user.email=me@localhost", "-c", "commit.gpgsign=false"]
    command = ["git", *identity, "-c", "protocol.file.allow=always", *words]
    subprocess.run(command, cwd=cwd or hpcrun.project, check=True, capture_output=True)


def test_script_ignored_by_git_is_refused_before_anything_is_written(hpcrun: Caller) -> None:
    inner = hpcrun.project.parent / "inner"
    inner.mkdir()
    git(hpcrun, "init", "-q", cwd=inner)
    (inner / "sub.py").write_text("")
    git(hpcrun, "add", ".", cwd=inner)
    git(hpcrun, "commit", "-qm", "x", cwd=inner)
    git(hpcrun, "init", "-q")
    git(hpcrun, "submodule", "add", "-q", str(inner), "inner")
    hpcrun.write(".gitignore", "secret.py\n")
    hpcrun.write("secret.py", "")
    hpcrun.write("untracked.py", "")
    [message] = errors(hpcrun, "script: secret.py")
    assert "secret.py: git ignores it, so it is not in the run's copy of the code" in message
    assert notes(hpcrun, "script: secret.py\nsnapshot: false") == []
    assert notes(hpcrun, "script: untracked.py") == []
    assert notes(hpcrun, "script: inner/sub.py") == []
    git(hpcrun, "add", "-f", "secret.py")
    assert notes(hpcrun, "script: secret.py") == []


# ---- commands, and files named by arguments


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("./run.sh", "command: ./run.sh: not executable; chmod +x "),
        ("./no.sh", "command: ./no.sh: no such file"),
        ("/usr/bin/no-such-program", "command: /usr/bin/no-such-program: no such file"),
        ("data/", "command: data/: a folder"),
        ("hostname", ""),
        ("/usr/bin/env", ""),
        ("/nodes-only/bin/python", ""),
        ("$HOME/x", ""),
    ],
)
def test_missing_command_path_is_refused(hpcrun: Caller, words: str, message: str) -> None:
    hpcrun.write("run.sh", "")
    (hpcrun.project / "data").mkdir()
    job = f"command: ['{words}']\nresources: {{gpus_per_node: 0}}\n"
    if message:
        [problem] = errors(hpcrun, job)
        assert problem.startswith(message)
        # The setup may create it later; a container has its own files.
        assert notes(hpcrun, job + "setup: {commands: [make]}") == []
    else:
        assert notes(hpcrun, job) == []


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("{tmp}/none/a.bin", "{tmp}/none/a.bin: no such file or folder"),
        ("{tmp}/none/**/*.bin", "{tmp}/none/: no such file or folder"),
        ("{tmp}/none/part-[0-9]", "{tmp}/none/: no such file or folder"),
        ("{tmp}/none/", "{tmp}/none/: no such file or folder"),
        ("/no-such-root/a", "/no-such-root/a: no /no-such-root; right if only the compute nodes"),
        ("/no-such-root/*/b.bin", "/no-such-root/: no /no-such-root; right if only the compute"),
        ("{tmp}/**/*.bin", ""),
        ("{tmp}/prefix", ""),
        ("/**/a.bin", ""),
        ("{tmp}/none/{{{{1,2}}}}.bin", ""),
    ],
)
def test_data_that_does_not_exist_is_noted(hpcrun: Caller, value: str, message: str) -> None:
    hpcrun.write("train.py", "")
    tmp = hpcrun.project.parent  # the path of the project has a blank
    words = value.format(tmp=tmp)
    found = notes(hpcrun, GOOD + f"args: [--data, '{words}']")
    if not message:
        assert found == []
        return
    (note,) = found
    assert note.startswith(f"args: --data {message.format(tmp=tmp)}")


def test_script_started_by_a_command_is_checked(hpcrun: Caller) -> None:
    command = "command: [python, -u, train.py, --batchsize, 3]\nresources: {gpus_per_node: 0}"
    [fault] = errors(hpcrun, command)
    assert fault.startswith("command: --batchsize: train.py has no such argument")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            "--data, data/trian.txt",
            [
                "args: --data data/trian.txt: the project has no such file; did you mean "
                "data/train.txt?"
            ],
        ),
        ("--data=data/none.csv", ["args: --data data/none.csv: the project has no such file"]),
        ("data/none.csv", ["args: data/none.csv: the project has no such file"]),
        ("--data, data/train.txt", []),
        ("--output_file, data/new.txt", []),
        ("--log_file=data/new.txt", []),
        ("--data, someone/dataset.json", []),
        (
            "--data, /elsewhere/x.txt",
            [
                "args: --data /elsewhere/x.txt: no /elsewhere; right if only the compute nodes "
                "mount it"
            ],
        ),
        ("--data, '{run_dir}/x.txt'", []),
        ("--data, 'data/*.txt'", []),
        ("--data, 's3://data/x.txt'", []),
        ("config.yaml", []),
        # A file or a path may be an output.
        ("--predictions_file, data/new.csv", []),
        ("--metrics-file=data/new.json", []),
        ("--test_metrics_path, data/new.json", []),
        ("--index_file, data/new.bin", []),
        ("data/results.json", []),
    ],
)
def test_missing_files_named_by_arguments_are_noted(
    hpcrun: Caller, words: str, message: list[str]
) -> None:
    hpcrun.write("train.py", "import sys\n")
    hpcrun.write("data/train.txt", "")
    job = f"script: train.py\nargs: [{words}]\n"
    assert notes(hpcrun, job) == message
    assert notes(hpcrun, job + "setup: {commands: [make data]}") == []  # not made yet


def test_files_in_a_container_are_not_checked(hpcrun: Caller) -> None:
    inside = "setup: {container: {image: 'docker://x', runtime: apptainer}}\n"
    assert notes(hpcrun, f"command: [/opt/none/x]\n{inside}resources: {{gpus_per_node: 0}}") == []
    assert notes(hpcrun, f"script: /opt/none/train.py\n{inside}") == []
    hpcrun.write("train.py", "this is no python\n")
    assert notes(hpcrun, f"{GOOD}{inside}args: [--data, data/x.txt]") == []


@pytest.mark.slow
def test_presets_have_no_notes(hpcrun: Caller) -> None:
    names: list[Any] = [job["name"] for job in hpcrun("jobs", "--json").json["jobs"]]
    assert len(names) > 5
    for name in names:
        shown = hpcrun(
            "submit", name, "--dry-run", "--json", "--partition", "unknown", "--no-check"
        )
        own = [note for note in shown.json["notes"] if "unknown" not in note and "CPU" not in note]
        assert [
            note for note in own if note.startswith(("args", "batch", "deepspeed", "env"))
        ] == []


COPY = "not from the run's copy"


@pytest.mark.parametrize(
    ("script", "text", "place"),
    [
        ("", "args: [configs/a.yaml]", "args: configs/a.yaml: read from the project"),
        (
            "",
            "args: [train, ./configs/a.yaml, --lr, 1]",
            "args: ./configs/a.yaml: read from the project",
        ),
        (
            "",
            "args: [--config, configs/a.yaml]",
            "args: --config configs/a.yaml: read from the project",
        ),
        (
            "",
            "args: [--config=configs/a.yaml]",
            "args: --config configs/a.yaml: read from the project",
        ),
        (
            "p.add_argument('--config', default='configs/a.yaml')\n",
            "args: []",
            "the default of --config: configs/a.yaml: read from the project",
        ),
        (
            "p.add_argument('config', nargs='?', default='configs/a.yaml')\n",
            "args: []",
            "the default of config: configs/a.yaml: read from the project",
        ),
        (
            "get_config('./configs/a.yaml')\n",
            "",
            "train.py:3: ./configs/a.yaml is read from the project",
        ),
        (
            "OmegaConf.load('configs/a.yaml')\n",
            "",
            "train.py:3: configs/a.yaml is read from the project",
        ),
        ("", "args: ['{code_dir}/configs/a.yaml']", ""),
        ("", "args: [configs/none.toml]", ""),
        (
            "p.add_argument('--config', default='configs/a.yaml')\n",
            "args: [--config, '{code_dir}/configs/a.yaml']",
            "",
        ),
        ("save('configs/a.yaml')\n", "", ""),
    ],
)
def test_a_configuration_that_is_not_read_from_the_copy_is_reported(
    hpcrun: Caller, script: str, text: str, place: str
) -> None:
    hpcrun.write("configs/a.yaml", "lr: 1\n")
    start = "import argparse\np = argparse.ArgumentParser()\n"
    hpcrun.write("train.py", f"{start}{script}args, rest = p.parse_known_args()\n")
    found = [note for note in notes(hpcrun, f"{GOOD}{text}") if COPY in note]
    assert len(found) == (place != ""), found
    assert place == "" or found[0].startswith(place)


HYDRA = """\
import hydra
@hydra.main(version_base=None, config_path="conf", config_name="config")
def main(cfg): ...
main()
"""


def test_overrides_are_checked_against_the_hydra_configuration(hpcrun: Caller) -> None:
    hpcrun.write("train.py", HYDRA)
    hpcrun.write("conf/config.yaml", "defaults: [{model: vit}]\noptim: {lr: 1e-3}\n")
    hpcrun.write("conf/model/vit.yaml", "depth: 12\n")
    hpcrun.write("conf/tiny.yaml", "depth: 1\n")
    job = "script: train.py\nargs: [optim.lr=1, +new=2, {}]"
    assert dry(hpcrun, job.format("model.depth=2")).code == 0
    for word, answer in {
        "optim.rl=1": "args: optim.rl: the configuration config has no such key; did you mean "
        "optim.lr?",
        "model=vitt": "args: model=vitt: there is no model/vitt.yaml; did you mean vit?",
        "--config-name=tinny": "args: there is no configuration tinny; did you mean tiny?",
        "-cn=tiny": "args: optim.lr: the configuration tiny has no such key; +optim.lr=VALUE "
        "adds it",
    }.items():
        assert answer in " ".join(errors(hpcrun, job.format(word))), word
    hpcrun.write("settings.py", "from hydra.core.config_store import ConfigStore\n")
    hpcrun.write("train.py", f"import settings\n{HYDRA}")
    assert dry(hpcrun, job.format("optim.rl=1")).code == 0
