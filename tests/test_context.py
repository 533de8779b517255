"""Where hpcrun is called: which project, which cluster, which folders, which environment."""

from __future__ import annotations

import os
import pwd
import shutil
from pathlib import Path

import pytest

from hpcrun.assets import home_dir
from hpcrun.context import (
    expand_user_path,
    find_project,
    job_environment,
    load_context,
    slurm_environment,
    slurm_transport,
)
from hpcrun.errors import InputError
from hpcrun.remote.far import quote_profile_path
from hpcrun.remote.local import LocalTransport
from tests.needs import require_root

Environ = dict[str, str]


def profile(path: Path, name: str, more: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"name: {name}\n{more}")


@pytest.fixture
def clusters(clean_environ: Environ) -> Path:
    return Path(clean_environ["HOME"]) / ".config" / "hpcrun" / "clusters"


def chosen(environ: Environ, cwd: Path, cluster: str | None = None) -> str:
    return load_context(environ, cwd, cluster).cluster.name


def test_the_project_is_the_nearest_folder_with_a_profile(tmp_path: Path) -> None:
    deep = tmp_path / "a" / "b" / "c"
    deep.mkdir(parents=True)
    assert find_project(deep) == deep
    (tmp_path / "hpcrun.yaml").touch()
    assert find_project(deep) == tmp_path
    (tmp_path / "a" / "b" / "hpcrun.yaml").touch()
    assert find_project(deep) == tmp_path / "a" / "b"


def test_the_order_in_which_a_cluster_is_found(
    tmp_path: Path, clean_environ: Environ, clusters: Path
) -> None:
    sandbox = Path(f"/tmp/hpcrun-test-{os.getpid()}")
    clean_environ["HPCRUN_SANDBOX_DIR"] = str(sandbox)
    assert chosen(clean_environ, tmp_path) == "default"
    profile(clusters / "mine.yaml", "mine")
    assert chosen(clean_environ, tmp_path) == "mine"
    try:
        profile(sandbox / "cluster.yaml", "sandbox")
        (sandbox / "sandbox.json").touch()
        assert chosen(clean_environ, tmp_path) == "sandbox"
        profile(tmp_path / "hpcrun.yaml", "project")
        assert chosen(clean_environ, tmp_path) == "project"
        assert chosen(clean_environ, tmp_path, "sandbox") == "sandbox"
        assert chosen(clean_environ, tmp_path, "mine") == "mine"
        assert chosen(clean_environ, tmp_path, "project") == "project"
        clean_environ["HPCRUN_CLUSTER"] = "mine"
        assert chosen(clean_environ, tmp_path) == "mine"
        assert chosen(clean_environ, tmp_path, "project") == "project"
        clean_environ["HPCRUN_CLUSTER"] = ""
        assert chosen(clean_environ, tmp_path) == "project"
    finally:
        shutil.rmtree(sandbox, ignore_errors=True)


def test_what_others_put_there_is_not_read(
    tmp_path: Path, clean_environ: Environ, clusters: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A profile runs commands: nobody else's sandbox and nobody else's hpcrun.yaml counts."""
    require_root()
    sandbox = Path(f"/tmp/hpcrun-test-{os.getpid()}")
    clean_environ["HPCRUN_SANDBOX_DIR"] = str(sandbox)
    try:
        profile(sandbox / "cluster.yaml", "sandbox")
        (sandbox / "sandbox.json").touch()
        os.chown(sandbox, 12345, 12345)
        assert chosen(clean_environ, tmp_path) == "default"
    finally:
        shutil.rmtree(sandbox, ignore_errors=True)
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    profile(tmp_path / "hpcrun.yaml", "theirs")
    assert chosen(clean_environ, inner) == "theirs"
    os.chown(tmp_path / "hpcrun.yaml", 12345, 12345)
    for where in (tmp_path, inner):
        with pytest.raises(InputError, match=r"hpcrun\.yaml belongs to 12345: ") as refusal:
            chosen(clean_environ, where)
        assert refusal.value.fix.endswith(f"export HPCRUN_TRUST={tmp_path}")
    profile(clusters / "mine.yaml", "mine")
    assert chosen(clean_environ, tmp_path, "mine") == "mine"
    monkeypatch.setenv("HPCRUN_TRUST", f"/nowhere:{tmp_path.parent}")
    assert chosen(clean_environ, inner) == "theirs"
    monkeypatch.undo()
    # Where anybody may put one it stops nobody.
    tmp_path.chmod(0o1777)
    assert chosen(clean_environ, inner) == "mine"


def test_another_config_folder(tmp_path: Path, clean_environ: Environ, clusters: Path) -> None:
    profile(clusters / "mine.yaml", "mine")
    clean_environ["XDG_CONFIG_HOME"] = str(tmp_path / "config")
    assert chosen(clean_environ, tmp_path) == "default"
    profile(tmp_path / "config" / "hpcrun" / "clusters" / "other.yaml", "other")
    assert chosen(clean_environ, tmp_path) == "other"


@pytest.mark.parametrize(
    ("text", "folder"),
    [
        ("/scratch/runs", "/scratch/runs"),
        ("~/runs", "{home}/runs"),
        ("~", "{home}"),
        ("runs", "{project}/runs"),
        ("$SCRATCH/runs", "/big disk/runs"),
        ("${SCRATCH}runs", "/big diskruns"),
        ("/a/$$x", "/a/$x"),
        ("/a/~/b", "/a/~/b"),
    ],
)
def test_runs_dir(tmp_path: Path, clean_environ: Environ, text: str, folder: str) -> None:
    clean_environ["SCRATCH"] = "/big disk"
    profile(tmp_path / "hpcrun.yaml", "c", f'runs_dir: "{text}"\ncache_dir: "{text}/c"\n')
    context = load_context(clean_environ, tmp_path)
    expected = folder.format(home=clean_environ["HOME"], project=tmp_path)
    assert str(context.runs_dir) == expected
    assert str(context.cache_dir) == f"{expected}/c"


@pytest.mark.parametrize("text", ["$NOWHERE/runs", "${NO-WHERE}", "a$", "$1"])
def test_a_variable_that_is_not_set(tmp_path: Path, clean_environ: Environ, text: str) -> None:
    profile(tmp_path / "hpcrun.yaml", "c", f"runs_dir: {text}\n")
    with pytest.raises(InputError, match=r"hpcrun\.yaml: runs_dir: "):
        load_context(clean_environ, tmp_path)


SCRUBBED = (
    *("SLURM_JOB_ID", "SLURMD_NODENAME", "SRUN_CPUS_PER_TASK", "SBATCH_ACCOUNT", "SALLOC_X"),
    *("HPCRUN_RUN_DIR", "RANK", "WORLD_SIZE", "NODE_RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    *("MASTER_ADDR", "MASTER_PORT", "GROUP_RANK", "ROLE_RANK", "TORCHELASTIC_RUN_ID"),
    *("PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK"),
)
KEPT = ("HOME", "PATH", "SSH_AUTH_SOCK", "CUDA_HOME", "HF_HOME", "RANKING", "MY_RANK", "SLURMX")


def test_job_inherits_no_variables_of_another_job(tmp_path: Path, clean_environ: Environ) -> None:
    environ = clean_environ | dict.fromkeys((*SCRUBBED, *KEPT), "x")
    kept = job_environment(load_context(environ, tmp_path))
    assert not kept.keys() & set(SCRUBBED)
    assert kept.keys() >= set(KEPT)
    assert all(environ[name] == value for name, value in kept.items())


def test_a_users_filters_change_no_question_of_hpcruns(
    tmp_path: Path, clean_environ: Environ
) -> None:
    """SQUEUE_PARTITION hides jobs, SCANCEL_INTERACTIVE cancels none; a job itself has them."""
    names = ("SQUEUE_PARTITION", "SINFO_FORMAT", "SACCT_FEDERATION", "SCANCEL_INTERACTIVE")
    filters = dict.fromkeys((*names, "SCONTROL_LOCAL"), "x")
    context = load_context(clean_environ | filters | {"SLURM_CONF": "/c"}, tmp_path)
    asked = slurm_environment(context)
    assert not asked.keys() & filters.keys() and asked["SLURM_CONF"] == "/c"
    assert job_environment(context).keys() >= filters.keys()


def test_a_clean_environment_is_that_of_any_login(tmp_path: Path, clean_environ: Environ) -> None:
    slurm = tmp_path / "slurm" / "bin"
    slurm.mkdir(parents=True)
    (slurm / "sbatch").touch(0o755)
    mine = dict.fromkeys(
        ("CUDA_HOME", "PYTHONPATH", "LOADEDMODULES", "SLURM_JOB_ID", "TMPDIR"), "x"
    )
    theirs = {"USER": "me", "LANG": "C.UTF-8", "LC_TIME": "C", "MODULESHOME": "/m"}
    environ = clean_environ | mine | theirs | {"PATH": f"/mine/bin:{slurm}", "SLURM_CONF": "/c"}
    kept = job_environment(load_context(environ, tmp_path), "clean")
    assert not kept.keys() & mine.keys()
    assert kept.items() >= {**theirs, "SLURM_CONF": "/c", "HOME": environ["HOME"]}.items()
    folders = kept["PATH"].split(":")
    assert "/usr/bin" in folders and folders[-1] == str(slurm) and "/mine/bin" not in folders


def test_which_slurm_conf(tmp_path: Path, clean_environ: Environ) -> None:
    def conf(*given: str) -> str | None:
        transport = slurm_transport(load_context(clean_environ, tmp_path), *given)
        assert isinstance(transport, LocalTransport)
        return transport.env.get("SLURM_CONF")

    assert conf() is None
    clean_environ["SLURM_CONF"] = "/mine/slurm.conf"
    assert conf() == "/mine/slurm.conf"
    own = tmp_path / "slurm.conf"
    profile(tmp_path / "hpcrun.yaml", "c", f"slurm_conf: {own}\n")
    # A run's own is another Slurm's, whatever the profile names.
    assert conf("/of/the/run/slurm.conf") == "/of/the/run/slurm.conf"
    with pytest.raises(InputError, match=rf"hpcrun.yaml: slurm_conf: {own}: no such file"):
        conf()
    own.touch()
    assert conf() == str(own)


def test_a_home_that_nobody_says_is_the_systems() -> None:
    home = pwd.getpwuid(os.getuid()).pw_dir
    assert home_dir({}) == home_dir({"HOME": ""}) == home
    assert home_dir({"HOME": "/h"}) == "/h"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("~", "/home/ada"),
        ("~/runs", "/home/ada/runs"),
        ("runs", "/project/runs"),
        ("./~nosuchuser/runs", "/project/~nosuchuser/runs"),
        ("runs~", "/project/runs~"),
        ("~root/runs", f"{pwd.getpwnam('root').pw_dir}/runs"),
    ],
)
def test_home_folders_in_paths_are_expanded(text: str, expected: str) -> None:
    found = expand_user_path(text, {"HOME": "/home/ada"}, Path("/project"), "runs_dir")
    assert str(found) == expected


@pytest.mark.parametrize("text", ["~nosuchuser/runs", "~nosuchuser", "~$WHO/runs"])
def test_home_folder_of_an_unknown_user_is_refused(text: str) -> None:
    environ = {"HOME": "/home/ada", "WHO": "nosuchuser"}
    with pytest.raises(InputError, match=r"runs_dir: .*: there is no user nosuchuser"):
        expand_user_path(text, environ, Path("/project"), "runs_dir")
    if "$" not in text:
        with pytest.raises(InputError, match="only your own home folder is known"):
            quote_profile_path(text)


@pytest.mark.parametrize("name", ["sandbox", "mine"])
def test_profile_of_a_stopped_sandbox_names_the_command_that_starts_it(
    tmp_path: Path, clean_environ: Environ, name: str
) -> None:
    profile(tmp_path / "hpcrun.yaml", name, "slurm_conf: /nonexistent/sandbox/slurm.conf\n")
    with pytest.raises(InputError) as caught:
        slurm_transport(load_context(clean_environ, tmp_path))
    is_named = caught.value.fix == "hpcrun sandbox up"
    assert is_named == (name == "sandbox")
