"""setup.sh and local.sh: what job.sbatch and node.sh call, in a real bash, without Slurm."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hpcrun.assets import shipped_folder

TEMPLATES = shipped_folder("templates")
HOST = os.uname().nodename


def bash(script: str, *words: str, **env: str) -> tuple[int, str, str]:
    """Run a script that has both files' functions, in an environment of its own."""
    done = subprocess.run(
        ["bash", "-c", f". {TEMPLATES}/setup.sh; . {TEMPLATES}/local.sh\n{script}", "-", *words],
        env={"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", **env},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    ("version", "is_old"),
    [("2.7.1+cu128", True), ("1.13.1", True), ("2.8.0", False), ("2.13.0+cpu", False), ("", False)],
)
def test_the_flight_record_has_the_name_that_torch_reads(
    tmp_path: Path, version: str, is_old: bool
) -> None:
    torch = tmp_path / "lib/python3.10/site-packages/torch"
    for folder in (torch, tmp_path / "bin"):
        folder.mkdir(parents=True)
    (tmp_path / "bin/python").symlink_to(sys.executable)
    if version:
        (torch / "version.py").write_text(
            f"from typing import Optional\n__version__ = '{version}'\n"
        )
    script = "name_flight_record python; export -p | grep -o 'TORCH_NCCL.*'"
    env = {"PATH": f"{tmp_path}/bin:/usr/bin:/bin", "TORCH_FR_BUFFER_SIZE": "2000"}
    old = {'TORCH_NCCL_TRACE_BUFFER_SIZE="2000"', 'TORCH_NCCL_DEBUG_INFO_TEMP_FILE="/r/flight-"'}
    found = bash(script, TORCH_FR_DUMP_TEMP_FILE="/r/flight-", **env)[1].split()
    assert set(found) == (old if is_old else set())
    assert bash(script, **env)[1] == "", "of a job that has no flight record"


# ---- Modules: stand-ins that answer as the versions of `module` do; the real ones are tested in
# tests/cluster/test_environment.py.

# environment-modules 3.2 ends with 0 whatever happened; Lmod can be asked what is loaded.
OLD = """
module() {
    case $2 in
    good*) export LOADEDMODULES=$2/1.0 ;;
    *) echo "ModuleCmd_Load.c(213):ERROR:105: Unable to locate a modulefile for '$2'" >&2 ;;
    esac
}
"""
LMOD = """
LMOD_CMD=/lmod
module() {
    case $1 in
    load) [ "$2" != bad ] || return 1; [ "$2" = alias ] || export LOADEDMODULES=$2/1.0 ;;
    is-loaded) [ "$2" = alias ] ;;
    esac
}
"""


@pytest.mark.parametrize(
    ("module", "name", "loaded", "message"),
    [
        (OLD, "good", "", None),
        (OLD, "gone", "", "module load gone loaded nothing"),
        (OLD, "gone", "other/1:gone-too/2", "module load gone loaded nothing"),
        (OLD, "here", "other/1:here/2", None),
        (OLD, "here/2", "here/2", None),
        (LMOD, "good", "", None),
        (LMOD, "bad", "", "module load bad failed"),
        (LMOD, "alias", "its-real-name/1", None),
    ],
)
def test_a_module_that_is_not_loaded_ends_the_job(
    module: str, name: str, loaded: str, message: str | None
) -> None:
    code, out, err = bash(f"{module}\nload_module {name}\necho done", LOADEDMODULES=loaded)
    if message is None:
        assert (code, out) == (0, "done\n"), err
    else:
        assert (code, out) == (1, "")
        assert f"hpcrun: error: {HOST}: {message}" in err


def test_modules_are_found_by_the_sites_variable(tmp_path: Path) -> None:
    (tmp_path / "init").mkdir()
    (tmp_path / "init" / "bash").write_text(
        'module() { export LOADEDMODULES=$2; }; : "$UNSET_ON_PURPOSE"\n'
    )
    script = "unset -f module; grep() { :; }; init_modules; load_module x; echo $LOADEDMODULES"
    assert bash(script, LMOD_PKG=str(tmp_path))[1] == "x\n"


# ---- Environments


def make_prefix(folder: Path) -> Path:
    """A conda environment that came without conda, as conda-pack makes them."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    scripts = folder / "etc" / "conda" / "activate.d"
    scripts.mkdir(parents=True)
    (scripts / "x.sh").write_text('export FROM="$CONDA_PREFIX$UNSET_ON_PURPOSE"\n')
    return folder


def test_a_conda_environment_without_conda(tmp_path: Path) -> None:
    prefix = make_prefix(tmp_path / "my env")
    shown = 'activate_conda "$1"; echo "$FROM"; python -c "import sys; print(sys.prefix)"'
    assert bash(shown, str(prefix)) == (0, f"{prefix}\n{prefix}\n", "")
    code, _, err = bash(shown, "nowhere")
    assert code == 1
    assert "no conda, mamba or micromamba here, and no environment at nowhere" in err
    assert f"hpcrun: error: {HOST}: the conda environment nowhere cannot be activated" in err


@pytest.mark.parametrize("where", ["CONDA_EXE", "path", "prefix", "bashrc", "home", "MAMBA_EXE"])
def test_conda_is_found(tmp_path: Path, where: str) -> None:
    base = tmp_path / ("miniforge3" if where == "home" else "conda base")
    name = "micromamba" if where == "MAMBA_EXE" else "conda"
    conda = base / "bin" / name
    conda.parent.mkdir(parents=True)
    conda.write_text("#!/bin/sh\n")
    conda.chmod(0o755)
    env = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
    wanted = "ml"
    if where in ("CONDA_EXE", "MAMBA_EXE"):
        env[where] = str(conda)
    elif where == "path":
        env["PATH"] += f":{conda.parent}"
    elif where == "prefix":
        wanted = str(base / "envs" / "ml")
        Path(wanted).mkdir(parents=True)
    elif where == "bashrc":
        # The line that `conda init` writes.
        line = f"__conda_setup=\"$('{conda}' 'shell.bash' 'hook' 2> /dev/null)\"\n"
        (tmp_path / ".bashrc").write_text(f"alias ls='ls -l'\n{line}")
    code, out, err = bash('find_conda "$1"', wanted, **env)
    assert (code, err) == (0, "")
    assert Path(out.strip()).resolve() == conda
    assert bash('find_conda "$1"', "ml")[1] == ""


def test_an_environment_that_is_not_there_names_the_node(tmp_path: Path) -> None:
    code, _, err = bash('activate_venv "$1"', str(tmp_path), SLURMD_NODENAME="n7")
    assert (code, err) == (1, f"hpcrun: error: n7: {tmp_path}: no virtual environment is here\n")
    code, _, err = bash('type() { :; }; uv_sync "$1" .venv', str(tmp_path))
    assert code == 1 and "there is no uv on the PATH" in err


def test_values_travel_past_an_image() -> None:
    """An image sets A, B and E in between; what was kept has the job's value again."""
    value = "a$(id) 'b'\n\\c"
    script = "keep A E UNSET; A=image B=image E=image; restore\n"
    script += 'printf "%s|" "$A" "$B" "$E" "${UNSET-unset}" "${!HPCRUN_KEPT_@}"'
    code, out, _ = bash(script, A=value, E="")
    assert (code, out) == (0, f"{value}|image||unset|")


@pytest.mark.parametrize(
    ("commands", "expected"),
    [
        (":", "8"),
        ("export A=1", "1"),
        ("export A=", ""),
        ("export A", "1"),
        ("A=1; export A B=2", "1"),
        ("export B=1", "8"),
        ("export -n A", "8"),
        ("unset A", "8"),
        ("A=2", "2"),
        ("declare -x A=1", "8"),
        ("set -eu; unset A; export A=3", "3"),
        ("x='1 2  3'; export A=$x", "1 2  3"),
        ("export A+=2", "12"),
        ("f() { local B=3; export A=$B; }; f", "3"),
        ("name=5; export name; export A=$name$(bash -c 'echo $A')", "51"),
        ("\\export A=1", "1"),
        ("HPCRUN_WORD=x; export -- A=1", "1"),
    ],
)
def test_export_of_a_setup_command_overrides_hpcruns_value(commands: str, expected: str) -> None:
    """A has the value 1 before, of the shell or a module, and hpcrun's is 8."""
    script = f"set_aside A C\n{commands}\nkeep_changed\nset +eu; export A=8; restore\n"
    script += 'printf "%s|" "$A" "$(bash -c \'echo "$A"\')" "$(type -t export)" "${!HPCRUN_@}"'
    code, out, err = bash(script, A="1")
    assert (code, out, err) == (0, f"{expected}|{expected}|builtin|", ""), commands


def test_empty_export_of_an_unset_variable_overrides_hpcruns_value() -> None:
    script = 'set_aside A B\nexport A=\nkeep_changed\nA=8 B=9; restore; printf \'%s|\' "$A" "$B"'
    assert bash(script) == (0, "|9|", "")


# ---- A node's own folder


def node(tmp_path: Path) -> dict[str, str]:
    """The environment of a node of a run."""
    run = tmp_path / "20261120-081455-x-7k3q"
    (run / "attempts" / "0").mkdir(parents=True, exist_ok=True)
    (tmp_path / "disk").mkdir(exist_ok=True)
    return {"HPCRUN_RUN_DIR": str(run), "HPCRUN_ATTEMPT": "0", "HPCRUN_NODE_RANK": "0"}


def test_a_folder_is_new_and_goes_with_its_last_task(tmp_path: Path) -> None:
    env, disk = node(tmp_path), tmp_path / "disk"
    old = disk / "hpcrun-20261120-081455-x-7k3q.7.0"
    (old / "locked").mkdir(parents=True)
    (old / "locked" / "file").touch()
    (old / "locked").chmod(0o555)
    others = disk / "hpcrun-20261120-081455-y-7k3q.0.0"
    others.mkdir()
    make = 'local_folder "$1" 2; echo "$HPCRUN_LOCAL_DIR"'
    _, out, err = bash(make, str(disk), **env)
    folder = disk / "hpcrun-20261120-081455-x-7k3q.0.0"
    assert (out, err) == (f"{folder}\n", "")
    assert not old.exists(), "what an attempt that was killed has left"
    assert bash(make, str(disk), SLURM_LOCALID="1", **env)[1] == f"{folder}\n"
    bash("set -u; leave_folder 0", SLURM_LOCALID="1", **env)
    assert folder.exists()
    bash("set -u; leave_folder 0", **env)
    assert {path.name for path in disk.iterdir()} == {others.name}
    assert bash("set -u; leave_folder 0", **env) == (0, "", "")


def test_what_others_made_is_neither_taken_nor_removed(tmp_path: Path) -> None:
    """The run takes another name, which its other tasks find, and which goes in the end."""
    env, disk = node(tmp_path), tmp_path / "disk"
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    link = disk / "hpcrun-20261120-081455-x-7k3q.0.0"
    link.symlink_to(theirs)
    make = 'local_folder "$1" 2 && echo "$HPCRUN_LOCAL_DIR"'
    code, out, err = bash(make, str(disk), **env)
    own = Path(out.strip())
    assert (code, err) == (0, "") and own.name.startswith(f"{link.name}-") and own.is_dir()
    assert bash(make, str(disk), SLURM_LOCALID="1", **env)[1] == out
    bash('remove_folder "$@"', str(theirs), str(disk), str(link), **env)
    for task in "01":
        bash("stopped=; leave_folder 0", SLURM_LOCALID=task, **env)
    assert theirs.is_dir() and list(disk.iterdir()) == [link] and link.is_symlink()


def test_a_disk_without_room_is_named(tmp_path: Path) -> None:
    env = node(tmp_path)
    code, _, err = bash(
        'mkdir() { [ "$1" = -p ] && command mkdir "$@"; }; local_folder "$1" 1',
        str(tmp_path),
        **env,
    )
    folder = tmp_path / "hpcrun-20261120-081455-x-7k3q.0.0"
    assert code == 1 and f"hpcrun: error: {HOST}: local_dir: cannot make {folder} (free on " in err


@pytest.mark.slow
@pytest.mark.parametrize(
    "stop",
    [
        'mkdir() { command mkdir "$@"; [ "$1" = -p ] || kill -9 $$; }',
        "read() { kill -9 $$; }",
        "wake() { kill -9 $$; }",
    ],
)
# The guard's program may be gone before the guard learns that the job is being stopped.
@pytest.mark.parametrize("end", ["stopped=1; leave_folder 0", "stopped=; leave_folder 143"])
@pytest.mark.parametrize("tasks", [1, 4])
def test_a_task_that_is_stopped_while_it_makes_the_folder_leaves_none(
    tmp_path: Path, stop: str, tasks: int, end: str
) -> None:
    env, disk = node(tmp_path), tmp_path / "disk"
    assert bash(f'{stop}\nlocal_folder "$1" {tasks}', str(disk), **env)[0] == -9
    assert list(disk.iterdir())
    assert bash(f"set -u; {end}", **env) == (0, "", "")
    assert not list(disk.iterdir())
    assert not list(Path(env["HPCRUN_RUN_DIR"], "attempts/0/local").iterdir())


def test_a_stopped_jobs_folder_goes_with_the_last_of_those_who_use_it(tmp_path: Path) -> None:
    """Of its four tasks two were stopped before they came, which is no mark of theirs."""
    env, disk = node(tmp_path), tmp_path / "disk"
    for task in "01":
        bash('local_folder "$1" 4', str(disk), SLURM_LOCALID=task, **env)
    bash("set -u; leave_folder 0", SLURM_LOCALID="3", **env)
    bash("set -u; stopped=1; leave_folder 0", SLURM_LOCALID="0", **env)
    assert list(disk.iterdir()), "the second may be saving"
    bash("set -u; stopped=1; leave_folder 0", SLURM_LOCALID="1", **env)
    assert not list(disk.iterdir())


def test_a_folder_on_another_host_keeps_its_record_for_that_host(tmp_path: Path) -> None:
    """What starts the hosts of a hostfile may be killed, and ends before they clean up."""
    env, disk = node(tmp_path), tmp_path / "disk"
    bash('local_folder "$1" 1', str(disk), **env)
    away = disk.rename(tmp_path / "each host has its own")
    clean = 'set -u; clean_node "$1" "$1"'
    assert bash(clean, HOST, **env) == (0, "", "")
    away.rename(disk)
    assert bash(clean, HOST, **env) == (0, "", "")
    assert not list(disk.iterdir())


def test_what_killed_runs_left_goes_with_a_later_one(tmp_path: Path) -> None:
    """Once they are certainly over: their end was recorded, or they were silent for a day."""
    env, disk = node(tmp_path), tmp_path / "disk"
    silent = {"ended": 11, "ending": 9, "lost": 1500, "alive": 20}
    for name, minutes in silent.items():
        run = tmp_path / f"20261120-081455-{name}-7k3q"
        there = {**node(tmp_path), "HPCRUN_RUN_DIR": str(run)}
        (run / "attempts" / "0").mkdir(parents=True)
        bash('local_folder "$1" 1', str(disk), **there)
        record = run / "attempts" / "0" / ("end.json" if "end" in name else "beat")
        record.touch()
        os.utime(record, (time.time() - minutes * 60,) * 2)
    bash('local_folder "$1" 1', str(disk), **env)
    left = {path.name.split("-")[3] for path in disk.iterdir()}
    assert left == {"ending", "alive", "x"}


def test_a_copy_is_whole_or_not_there(tmp_path: Path) -> None:
    env, disk = node(tmp_path), tmp_path / "disk"
    data = tmp_path / "data"
    (data / "in").mkdir(parents=True)
    (data / "in" / "file").write_text("x")
    (data / "in" / "link").symlink_to("../in/file")
    make = 'local_folder "$1" 1; stage "$2" "deep/to data"; '
    make += 'cat "$HPCRUN_LOCAL_DIR/deep/to data/in/link"'
    code, out, err = bash(make, str(disk), str(data), **env)
    assert (code, err) == (0, "") and out.endswith("x")
    bash("leave_folder 0", **env)
    (data / "out").symlink_to("../elsewhere")
    (tmp_path / "elsewhere").touch()
    code, _, err = bash(make, str(disk), str(data), **env)
    assert code == 1 and f"{data}/out links out of the folder" in err
    copies = disk / "hpcrun-20261120-081455-x-7k3q.0.0" / "deep"
    assert not (copies / "to data").exists()
    bash("leave_folder 0", **env)
    code, _, err = bash(make, str(disk), str(tmp_path / "nothing"), **env)
    assert (code, err) == (
        1,
        f"hpcrun: error: {HOST}: stage: {tmp_path}/nothing: no such file or folder\n",
    )


def test_a_file_of_the_run_gets_the_nodes_own_folder(tmp_path: Path) -> None:
    env, disk = node(tmp_path), tmp_path / "a & b"
    disk.mkdir()
    Path(env["HPCRUN_RUN_DIR"], "ds.json").write_text('{"a": "${HPCRUN_LOCAL_DIR}/x", "b": "$1"}\n')
    bash('local_folder "$1" 1; own_copy ds.json', str(disk), **env)
    folder = disk / "hpcrun-20261120-081455-x-7k3q.0.0"
    assert (folder / "ds.json").read_text() == f'{{"a": "{folder}/x", "b": "$1"}}\n'


@pytest.mark.slow
def test_a_nodes_other_tasks_wait_for_the_first(tmp_path: Path) -> None:
    env, disk = node(tmp_path), tmp_path / "disk"
    shown = (
        'sleep() { echo slept; }; local_folder "$1" 2; if first_on_node x; then command sleep 0.5; '
    )
    shown += 'export A="it\'s\n$2"; unset B; '
    shown += 'LC_ALL=C; cd /; done_on_node x; fi; echo "$A|${B-unset}|$C|$PWD"'
    words = ["bash", "-c", f". {TEMPLATES}/setup.sh; . {TEMPLATES}/local.sh\n{shown}", "-"]
    base = {"PATH": "/usr/bin:/bin", "HOME": "/", **env, "B": "b", "C": "c"}
    second = subprocess.Popen(
        [*words, str(disk), "2"],
        env={**base, "SLURM_LOCALID": "1"},
        stdout=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
    )
    time.sleep(0.3)
    code, out, err = bash(shown, str(disk), "1", **{**env, "B": "b", "C": "c", "TOKEN": "sesame"})
    assert (code, out, err) == (0, "it's\n1|unset|c|/\n", "")
    assert second.communicate()[0] == out
    # On that disk is what was changed, and nothing else of what may be a secret.
    files = [path for path in disk.rglob("*") if path.is_file()]
    assert not [path for path in files if b"sesame" in path.read_bytes()]
    (marks,) = (path for path in files if path.name == "x")
    assert marks.stat().st_mode & 0o777 == 0o600 and "export A=" in marks.read_text()


def test_what_a_full_disk_cuts_off_no_other_task_takes_over(tmp_path: Path) -> None:
    env, disk = node(tmp_path), tmp_path / "disk"
    fill = 'ln -s /dev/full "$HPCRUN_LOCAL_DIR/.hpcrun/part"'
    script = f'local_folder "$1" 2; first_on_node x; A=1; export A; {fill}; done_on_node x'
    code, _, err = bash(script, str(disk), **env)
    assert code == 1 and f"{HOST}: cannot write to " in err
    assert not list(disk.glob("*/.hpcrun/x"))


# ---- Locks


@pytest.mark.slow
def test_a_lock_of_a_dead_build_goes_and_one_in_use_stays(tmp_path: Path) -> None:
    stale, used = (tmp_path / "torch_extensions" / "py" / "arch" / name for name in ("a", "b"))
    for folder in (stale, used):
        folder.mkdir(parents=True)
        (folder / "lock").touch()
        (folder / "main.o").touch()
        for path in (folder / "lock", folder / "main.o", folder):
            os.utime(path, (time.time() - 25 * 60,) * 2)
    os.utime(used / "main.o", (time.time() - 15 * 60,) * 2)  # a compiler has just written it
    code, out, err = bash('set -u; clear_locks "$1"/torch_extensions/*/*/*/lock', str(tmp_path))
    assert (err, out) == (
        "",
        f"hpcrun: removed {stale}/lock, left behind by a killed build\n",
    )
    assert not (stale / "lock").exists() and (stale / "main.o").exists()
    assert (used / "lock").exists()
    # A process that watches ends with the one that it watches for.
    code, out, _ = bash('set -u; watch_locks "$1"; sleep 0.2; kill -9 $$', str(tmp_path))
    assert code == -9


def test_a_folder_of_modules_must_be_there(tmp_path: Path) -> None:
    show = 'module() { echo "$@"; }\nuse_modules "$1"'
    assert bash(show, str(tmp_path))[:2] == (0, f"use {tmp_path}\n")
    code, out, err = bash(show, "/no/where")
    assert (code, out) == (1, "") and "module use /no/where: there is no such folder" in err
    assert "module use" in bash(f"{show.replace('echo', 'false')}", str(tmp_path))[2]
