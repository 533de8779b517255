"""Hostile values reach the job unchanged; unsupported ones are refused.

These are values with special characters of bash, sbatch, srun, torchrun, YAML or hpcrun's
placeholders: quotes, blanks, ``$()``, backslashes, line ends, bytes that are not UTF-8 ...
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.cluster.rig import Rig
from tests.cluster.site import Site, Submitted

# Reports all that can be known of its own start; bytes as Latin-1 text, so that none is lost.
DUMP = """
import json, os, sys
def text(value): return os.fsencode(value).decode("latin-1")
told = {
    "argv": [text(word) for word in sys.argv[1:]],
    "environ": {text(name): text(value) for name, value in os.environ.items()},
    "cwd": text(os.getcwd()),
}
target = os.environ["HPCRUN_RUN_DIR"] + "/told.json"
with open(target + ".part", "w") as file:
    json.dump(told, file)
os.rename(target + ".part", target)
"""

WORST = [
    *("", " ", "  lead", "trail  ", "--", "-", "-x", "--help", "--name=x", "=", "~", "~root", "!!"),
    *("it's", '"', "'", "''", "\\", "\\\\", "\\n", "\\'", "a b", "#", "# c", ";", "; exit 3", "&"),
    *("$(exit 3)", "`exit 3`", "$HOME", "${HOME}", "$$", "$", "${local_rank}", "$0", "%j", "%%"),
    *("*", "?", "[a-z]*", "{", "}", "{}", "{{", "{{}}", "{a,b}", "{nodes", "|", "<", ">", "(", ")"),
    *(
        "\n",
        "a\nb",
        "a\n",
        "\t",
        "\r",
        "a\r\nb",
        "\x01\x1b[31m\x7f",
        "\x1e\x1f",
        "\x85\u2028\ufeff",
    ),
    *("é", "日本語", "😀", "EOF", "#SBATCH --bogus", "\n#SBATCH --bogus\n", "null", "no", "1e-4"),
    *("012", "{% raw %}", "{# x #}", "$'\\n'", "\\u0041", "%(x)s", "x" * 100_000),
]
NOT_UTF8 = [b"\xff", b"a\xe9b", b"\xff\xfe'\n\\", b"\xed\xa0\x80", b"$(\x80)\x801"]

characters = st.characters(exclude_categories=["Cs"], exclude_characters="\0")
hostile = (
    st.sampled_from(" \t\n\r'\"#;$`%\\{}()*?[]<>|&~!-=:,./é😀\u2028\x01\x1b\x7f\x85") | characters
)
values = st.text(hostile, max_size=12) | st.sampled_from([word for word in WORST if len(word) < 99])
words = st.binary(max_size=12).filter(lambda word: b"\0" not in word) | values.map(os.fsencode)
names = st.text(hostile, min_size=1, max_size=40).filter(
    lambda name: name.strip() and not re.search(r"[\r\n\x1e\x1f]", name)
)
folders = st.text(hostile, min_size=1, max_size=20).filter(
    lambda name: "/" not in name and name not in (".", "..")
)
# Slurm reads % and backslashes in the folder of a job's output: see test_refused.
runs_folders = folders.filter(
    lambda name: not re.search(r"(?s)(?=.*[%\\])(?=.*[\n\r\x1e\x1f])", name)
)


def latin1(value: str | bytes) -> str:
    """Return the text that DUMP prints for a value."""
    return (value if isinstance(value, bytes) else os.fsencode(value)).decode("latin-1")


@pytest.fixture(scope="module")
def folder(rig: Rig) -> Iterator[Path]:
    """A folder for projects and runs with unusual names."""
    path = rig.shared / "odd"
    path.mkdir()
    yield path
    shutil.rmtree(path)


def check_arrival(
    rig: Rig,
    folder: Path,
    program: dict[str, object],
    *,
    args: list[str],
    after: list[bytes],
    env: list[str],
    name: str = "odd",
    project: str = "project",
    runs: str = "runs",
) -> Submitted:
    """Submit a job with values, and assert that each reaches the program."""
    case = folder / str(len(list(folder.iterdir())))
    # Folders in a profile may contain $VARIABLES, so dollars are doubled.
    runs_dir = str(case / f"runs {runs}").replace("$", "$$")
    site = Site(rig, case / f"project {project}", {"runs_dir": runs_dir}).prepare()
    (site.project / "dump.py").write_text(DUMP)
    job = {
        **program,
        "resources": {"gpus_per_node": 1},
        # In a job file {name} is a placeholder, so braces are doubled.
        "args": ["{checkpoint_dir}", *(re.sub(r"[{}]", r"\g<0>\g<0>", arg) for arg in args)],
        "env": {f"ODD_{i}": re.sub(r"[{}]", r"\g<0>\g<0>", v) for i, v in enumerate(env)},
    }
    (site.project / "job.yaml").write_text(yaml.safe_dump(job))
    inherited = "from the 'login'\n host; $(exit 3)"
    run = site.submit("./job.yaml", f"--name={name}", "--", *after, env={"INHERITED": inherited})
    done = site.follow(run)
    assert done.returncode == 0, done.stdout + done.stderr
    shown = json.loads((run.folder / "told.json").read_text())
    assert shown["argv"] == [
        latin1(f"{run.folder}/checkpoints"),
        *map(latin1, args),
        *map(latin1, after),
    ]
    environ = shown["environ"]
    assert [environ[f"ODD_{i}"] for i in range(len(env))] == [latin1(value) for value in env]
    assert environ["SLURM_JOB_NAME"] == latin1(name)
    assert environ["HPCRUN_CHECKPOINT_DIR"] == latin1(f"{run.folder}/checkpoints")
    assert environ["INHERITED"] == latin1(inherited)
    assert shown["cwd"] == latin1(str(site.project))
    assert run.folder.parent == case / f"runs {runs}"
    status = site.status(run)
    assert status["name"] == name
    assert status["job_id"] == run.job_id
    return run


PROGRAMS: dict[str, dict[str, object]] = {
    "torchrun": {"script": "dump.py", "launcher": "torchrun"},
    "srun": {"script": "dump.py", "launcher": "srun"},
    "command": {"command": [sys.executable, "dump.py"]},
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_worst_values_reach_the_program_unchanged(rig: Rig, folder: Path, program: str) -> None:
    longest = "é'" * 341 + "$"
    assert len(longest.encode()) == 1024
    run = check_arrival(
        rig,
        folder,
        PROGRAMS[program],
        args=WORST,
        after=[*map(os.fsencode, WORST), *NOT_UTF8],
        env=WORST,
        name=longest,
        project='it\'s a "project" #1; $(exit 3) `x` \\ %j * é 😀\n\t-x',
        runs='it\'s "runs" #1; $(exit 3) $$ ${local_rank} `x` \\ %j %% * é 😀\t-x',
    )
    # The recorded job is a job file that includes the arguments after --.
    spec = yaml.safe_load((run.folder / "spec.yaml").read_text())
    assert len(spec["args"]) == 1 + len(WORST) * 2 + len(NOT_UTF8)


# Each job takes sixty values of each kind; names and folders are one of each.
@settings(
    max_examples=12 if os.environ.get("HPCRUN_TEST_ALL") == "1" else 4,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.generate],  # each example is a Slurm job, so there is no shrinking
)
@given(
    program=st.sampled_from(["srun", "command"]),
    args=st.lists(values, min_size=60, max_size=60),
    after=st.lists(words, min_size=60, max_size=60),
    env=st.lists(values, min_size=60, max_size=60),
    name=names,
    project=folders,
    runs=runs_folders,
)
def test_any_value_reaches_the_program_unchanged(
    rig: Rig,
    folder: Path,
    program: str,
    args: list[str],
    after: list[bytes],
    env: list[str],
    name: str,
    project: str,
    runs: str,
) -> None:
    check_arrival(
        rig,
        folder,
        PROGRAMS[program],
        args=args,
        after=after,
        env=env,
        name=name,
        project=project,
        runs=runs,
    )


def test_bare_command_gets_its_arguments_unchanged(site: Site) -> None:
    """Without a job file, braces and any bytes are kept; only known placeholders are replaced."""
    (site.project / "dump.py").write_text(DUMP)
    given = [*map(os.fsencode, WORST), *NOT_UTF8, b"{nodes}", b"{'nodes': {nodes}}"]
    run = site.submit("--", sys.executable, "dump.py", *given)
    site.wait_for(run, "told.json")
    shown = json.loads((run.folder / "told.json").read_text())
    assert shown["argv"] == [*map(latin1, given[:-2]), "1", "{'nodes': 1}"]
    assert shown["cwd"] == str(site.project)


@pytest.mark.parametrize("newline", ["\n", pytest.param("\r", marks=pytest.mark.thorough)])
def test_runs_folder_with_a_newline_works(rig: Rig, folder: Path, newline: str) -> None:
    check_arrival(rig, folder, PROGRAMS["srun"], args=[], after=[], env=[], runs=f"a{newline}b")


def test_folders_with_names_other_than_utf8_work(rig: Rig, folder: Path) -> None:
    site = Site(rig, folder / os.fsdecode(b"caf\xe9 \xff"), {"runs_dir": "runs"}).prepare()
    (site.project / "dump.py").write_text(DUMP)
    (site.project / "job.yaml").write_text("script: dump.py\nlauncher: srun\n")
    run = site.submit("./job.yaml")
    assert site.follow(run).returncode == 0, run.log()
    shown = json.loads((run.folder / "told.json").read_text())
    assert shown["cwd"] == latin1(str(site.project))
    assert site.status(run)["state"] == "COMPLETED"


# ---- Unsupported values ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "name"),
    [
        ("name", "a\nb"),
        ("name", "a\rb"),
        ("name", "a\x1fb"),
        ("name", ""),
        ("name", "x" * 1025),
        ("name", os.fsdecode(b"\xff")),
    ],
)
def test_unsupported_names_are_refused(site: Site, field: str, name: str) -> None:
    done = site.hpcrun("submit", f"--name={name}", "--", "true")
    assert (done.returncode, done.stdout) == (2, "")
    assert f"{field}: " in done.stderr
    assert not (site.rig.shared / "runs").exists()


@pytest.mark.parametrize(
    ("field", "job"),
    [
        ("args[1]", {"args": ["a", "a\0b"]}),
        ("env.ODD", {"env": {"ODD": "a\0b"}}),
        ("slurm.comment", {"slurm": {"comment": "a\nb"}}),
        ("args[0]", {"args": ["{nodse}"]}),
    ],
)
def test_unsupported_values_are_refused(site: Site, field: str, job: dict[str, object]) -> None:
    (site.project / "job.yaml").write_text(yaml.safe_dump({"command": ["true"], **job}))
    done = site.hpcrun("submit", "./job.yaml")
    assert (done.returncode, done.stdout) == (2, "")
    assert f"{field}: " in done.stderr
    assert not (site.rig.shared / "runs").exists()


@pytest.mark.parametrize("runs_dir", ["a\0b", "50%\nof", "x" * 300])
def test_unsupported_runs_folder_is_refused(rig: Rig, folder: Path, runs_dir: str) -> None:
    """Slurm interprets a % in the folder of the output."""
    site = Site(rig, folder / "refusing", {"runs_dir": runs_dir}).prepare()
    done = site.hpcrun("submit", "--", "true")
    assert (done.returncode, done.stdout) == (2, "")
    assert "runs_dir" in done.stderr
    assert {path.name for path in site.project.iterdir()} == {"hpcrun.yaml"}


# ---- Secrets -----------------------------------------------------------------------------------

MARK = "marked-4f1c"
SECRET = f'{MARK} it\'s "$(exit 3)" `x` \\ \n#;{{}}é😀 {MARK}'
HOLD = """
import hashlib, os, time
here = os.environ["HPCRUN_RUN_DIR"]
digest = hashlib.sha256(os.environb[b"A_SECRET"]).hexdigest()
open(here + "/digest.part", "w").write(digest)
os.rename(here + "/digest.part", here + "/digest")
while not os.path.exists("go"):
    time.sleep(0.1)
"""


def files_with(mark: str, *folders: Path) -> list[str]:
    """Return the files below some folders that contain a text."""
    found = []
    for path in (path for folder in folders for path in folder.rglob("*")):
        if path.is_file() and mark.encode() in path.read_bytes():
            found.append(str(path))
    return found


def test_secret_reaches_the_job_and_is_stored_nowhere_else(site: Site) -> None:
    rig = site.rig
    (site.project / "hold.py").write_text(HOLD)
    (site.project / "job.yaml").write_text(
        "script: hold.py\nlauncher: srun\nsecrets: [A_SECRET]\nresources: {gpus_per_node: 0}\n"
    )
    run = site.submit("./job.yaml", env={"A_SECRET": SECRET})
    site.wait_for(run, "digest")
    assert (run.folder / "digest").read_text() == hashlib.sha256(SECRET.encode()).hexdigest()

    file = run.folder / "secrets.env"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert files_with(MARK, run.folder) == [str(file)]
    # Neither slurmctld nor slurmd knows it: it is not in the script or the job's environment.
    kept = [rig.root / "state", *(rig.root / "spool" / name for name in rig.node_names)]
    assert files_with(run.run_id, *kept), "Slurm keeps scripts and environments in these folders"
    assert files_with(MARK, *kept) == []
    shown = [
        rig.run("scontrol", "show", "job", "--details", run.job_id).stdout,
        rig.run("scontrol", "write", "batch_script", run.job_id, "-").stdout,
        *(command for name in rig.node_names for _, command in rig.processes(name)),
        site.hpcrun("show", run.run_id).stdout,
        site.hpcrun("status", "--json", run.run_id).stdout,
    ]
    assert all(shown)
    assert MARK not in "".join(shown)

    (site.project / "go").touch()
    done = site.follow(run)
    assert done.returncode == 0, run.log()
    assert not file.exists()
    assert MARK not in done.stdout + done.stderr
    assert files_with(MARK, run.folder, *kept) == []


def test_missing_secret_is_refused(site: Site) -> None:
    (site.project / "job.yaml").write_text("command: ['true']\nsecrets: [A_SECRET]\n")
    done = site.hpcrun("submit", "./job.yaml")
    assert done.returncode == 2
    assert "secrets: A_SECRET: not set" in done.stderr
    assert not (site.rig.shared / "runs").exists()
