"""hpcrun init on a machine without Slurm, and with replayed answers of Slurm."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from hpcrun.actions.init import survey
from tests.actions.made_environments import make_environment
from tests.cli.calling import ROOT, Caller
from tests.cli.init_slurm import CONFIG, NODES, PARTITIONS, Slurm, checked, files, profile
from tests.json_schemas import check_json
from tests.waiting import PATIENCE

CAPTURED = ROOT / "tests" / "captured"
VERSIONS = sorted(folder.name for folder in CAPTURED.iterdir())
SCRIPT = """\
import argparse, deepspeed
parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int)
parser = deepspeed.add_config_arguments(parser)
parser.parse_args()
"""


@pytest.fixture
def bare(tmp_path: Path, clean_environ: dict[str, str]) -> Caller:
    """A project without a profile, on a machine without Slurm."""
    caller = Caller(tmp_path, clean_environ)
    (caller.project / "hpcrun.yaml").unlink()
    return caller


@pytest.fixture
def slurm(bare: Caller) -> Slurm:
    """Add Slurm's commands to the others."""
    return Slurm(bare.tools)


def test_first_profile_and_job_can_be_submitted(bare: Caller, slurm: Slurm) -> None:
    bare.write("train.py", SCRIPT)
    answer = checked(bare("init", "train.py", "--json"))
    assert answer["action"] == "created" and answer["cluster"] == "hot"
    assert answer["job"]["framework"] == "deepspeed" and answer["job"]["written"]
    made = profile(bare)
    assert made["slurm_version"] == "24.11.5" and made["max_array_size"] == 1001
    assert made["partition"] == "gpu"
    assert made["partitions"]["gpu"]["cpus_per_node"] == 124
    assert made["partitions"]["gpu"]["gpu_types"] == {"a100": 4}
    assert made["partitions"]["cpu"]["gpus_per_node"] == 0
    for name in ("hpcrun.yaml", "jobs/train.yaml"):
        first = (bare.project / name).read_text().splitlines()[0]
        place = (bare.project / name).parent / first.partition("$schema=")[2]
        assert json.loads(place.read_text())["$schema"].endswith("2020-12/schema")
    dry = bare("submit", "train", "--dry-run")
    assert dry.code == 0 and "#SBATCH --gres=gpu:4" in dry.out, dry


def test_editor_schemas_are_ignored_by_git(bare: Caller, slurm: Slurm) -> None:
    bare.write("train.py", SCRIPT)
    subprocess.run(["git", "init", "-q", bare.project], check=True)
    assert bare("init", "train.py", "--json").code == 0
    assert (bare.project / ".hpcrun" / "job.schema.json").exists()
    listed = ["git", "-C", str(bare.project), "status", "--porcelain", "-uall"]
    shown = subprocess.run(listed, check=True, capture_output=True, text=True).stdout
    assert sorted(shown.split()[1::2]) == ["hpcrun.yaml", "jobs/train.yaml", "train.py"]


def test_partition_table_shows_restrictions(bare: Caller, slurm: Slurm) -> None:
    slurm.answer("partition", PARTITIONS.replace("MaxNodes=8", "MaxNodes=1").replace("UP", "DOWN"))
    slurm.answer("sinfo", NODES.replace("mixed", "drained"))
    bare.write("my train.py", SCRIPT)
    shown = bare("init", "my train.py", "--yes").out
    message = "its state is DOWN, 20 of 20 nodes are down or drained, 1 node a job"
    assert f"  default, {message}\n" in shown
    assert "hpcrun submit 'my train' --dry-run" in shown  # in the notation accepted by --time


@pytest.mark.slow
def test_second_call_reports_no_changes(bare: Caller, slurm: Slurm) -> None:
    assert bare("init", "--yes").code == 0
    before = (bare.project / "hpcrun.yaml").read_text()
    assert checked(bare("init", "--json"))["action"] == "unchanged"
    assert (bare.project / "hpcrun.yaml").read_text() == before
    assert bare("init", "--check").code == 0


@pytest.mark.slow
def test_second_call_shows_and_writes_changes(bare: Caller, slurm: Slurm) -> None:
    bare("init", "--yes")
    path = bare.project / "hpcrun.yaml"
    mine = "# mine\n" + path.read_text().replace("internet: true", "internet: false # no!")
    path.write_text(mine)
    slurm.answer("partition", PARTITIONS.replace("2-00:00:00", "1-00:00:00"))
    slurm.answer("sinfo", NODES + "gpu|2|128|512000|idle|h[1-2]|gpu:h100:8|ib\n")
    check = bare("init", "--check", "--json")
    assert check.code == 1 and path.read_text() == mine
    keys = {one["key"]: one for one in checked(check)["changed"]}
    assert keys["partitions.gpu.max_time"]["after"] == "1-00:00:00"
    assert keys["partitions.gpu.nodes"]["before"] == "20"
    assert keys["gpu_types.h100"]["what"] == "added"
    done = bare("init")
    assert done.code == 0 and "~ partitions.gpu.max_time  2-00:00:00 -> 1-00:00:00" in done.out
    text = path.read_text()
    assert text.startswith("# mine\n") and "internet: false # no!" in text
    assert bare("init", "--check").code == 0


@pytest.mark.slow
@pytest.mark.parametrize("chosen", ["--cluster", "HPCRUN_CLUSTER"])
@pytest.mark.parametrize("name", ["sandbox", "cold"])
def test_profile_of_another_cluster_is_not_changed(
    bare: Caller, slurm: Slurm, tmp_path: Path, name: str, chosen: str
) -> None:
    bare("init", "--yes")
    before = (bare.project / "hpcrun.yaml").read_text()
    clusters = tmp_path / "config" / "hpcrun" / "clusters"
    clusters.mkdir(parents=True)
    (clusters / "cold.yaml").write_text("name: cold\n")
    bare.environ["XDG_CONFIG_HOME"] = str(tmp_path / "config")
    words = ["--cluster", name] if chosen == "--cluster" else []
    if not words:
        bare.environ[chosen] = name
    done = bare("init", "--yes", *words)
    if name == "cold" and words:  # the user's own profile is meant
        assert done.code == 0 and "clusters/cold.yaml" in done.out
    else:
        assert done.code == 2 and "for another cluster, hot" in done.err
    assert (bare.project / "hpcrun.yaml").read_text() == before


@pytest.mark.slow
@pytest.mark.parametrize("key", ["slurm_conf: /nowhere/slurm.conf", "account: mine"])
def test_profile_of_a_missing_sandbox_is_replaced_only_on_confirmation(
    bare: Caller, slurm: Slurm, key: str
) -> None:
    text = f"name: sandbox\naccelerator: cpu\n{key}\npartitions: {{sandbox: {{}}}}\n"
    bare.write("hpcrun.yaml", text)
    done = bare("init", "--yes")
    assert done.code == 2 and "is for a sandbox that does not exist here" in done.err, done.err
    assert "of a sandbox" in bare("init", "--check").err
    assert (bare.project / "hpcrun.yaml").read_text() == text
    process, keyboard = bare.on_terminal("init")
    os.write(keyboard, b"y\n" + b"\n" * 9)
    assert process.wait() == 0
    os.close(keyboard)
    made = profile(bare)
    assert made["name"] == "hot" and "gpu" in made["partitions"]
    assert not {"accelerator", "slurm_conf"} & made.keys()


def test_removed_partition_that_is_still_used_is_reported(bare: Caller, slurm: Slurm) -> None:
    bare("init", "--yes")
    slurm.answer("partition", PARTITIONS.splitlines()[0] + "\n")
    slurm.answer("sinfo", NODES.splitlines()[0] + "\n")
    answer = checked(bare("init", "--json"))
    assert any("partition: gpu no longer exists" in note for note in answer["notes"])
    assert "# gone from the cluster on" in (bare.project / "hpcrun.yaml").read_text()


@pytest.mark.parametrize("version", VERSIONS)
def test_init_reads_captured_output_of_every_release(
    bare: Caller, slurm: Slurm, version: str
) -> None:
    def captured(command: str, case: str) -> Any:
        return json.loads((CAPTURED / version / command / f"{case}.json").read_text())

    slurm.answer("config", CONFIG.replace("24.11.5", version))
    slurm.answer("partition", captured("scontrol", "partition")["stdout"])
    slurm.answer("node", captured("scontrol", "node")["stdout"])
    rows = (line.split("|") for line in captured("sinfo", "partitions")["stdout"].splitlines())
    # The same nodes, in the columns that init requests.
    lines = [f"{r[0]}|{r[3]}|{r[5]}|{r[6]}|{r[8]}|node1|{r[4]}|{r[7]}" for r in rows]
    slurm.answer("sinfo", "\n".join(lines) + "\n")
    answer = checked(bare("init", "--json"))
    assert answer["slurm_version"] == version
    made = profile(bare)["partitions"]
    assert {name: each["gpus_per_node"] for name, each in made.items()} == {
        "debug": 4,
        "high": 4,
    }
    assert made["debug"]["nodes"] == 2 and made["high"]["max_time"] == "1-00:00:00"
    # If slurmctld is down, nothing is changed.
    before = (bare.project / "hpcrun.yaml").read_text()
    silent = captured("scontrol", "no-controller")
    slurm.answer("config", "", silent["stderr"], silent["exit_code"])
    done = bare("init", "--yes")
    assert done.code == 4 and "Slurm does not answer" in done.err
    assert (bare.project / "hpcrun.yaml").read_text() == before


@pytest.mark.slow
@pytest.mark.parametrize("key", ["config", "partition", "sinfo"])
@pytest.mark.parametrize("text", ["<html>busy</html>\n", "\udcff\x1b[31m\n", "usage: scontrol\n"])
def test_malformed_output_of_slurm_is_reported(
    bare: Caller, slurm: Slurm, key: str, text: str
) -> None:
    slurm.answer(key, text)
    done = bare("init", "--yes")
    assert done.code == 4 and "unexpected output" in done.err and "\x1b[31m" not in done.err
    assert files(bare) == []


def test_slurm_commands_without_a_cluster_are_reported(bare: Caller, slurm: Slurm) -> None:
    slurm.answer("config", "", "scontrol: fatal: Could not establish a configuration source\n", 1)
    done = bare("init", "--yes")
    assert done.code == 4 and "find no cluster" in done.err and "sandbox up" in done.err


@pytest.mark.slow
def test_cluster_without_partitions_is_accepted_only_for_a_new_profile(
    bare: Caller, slurm: Slurm
) -> None:
    slurm.answer("partition", "No partitions in the system\n")
    slurm.answer("sinfo", "")
    assert bare("init", "--yes").code == 0 and profile(bare)["partitions"] == {}
    # With an existing profile this is reported as an error.
    slurm.answer("partition", PARTITIONS)
    slurm.answer("sinfo", NODES)
    bare("init", "--yes")
    slurm.answer("sinfo", "")
    done = bare("init", "--yes")
    assert done.code == 4 and "shows none now" in done.err


def test_init_without_slurm_is_refused(bare: Caller) -> None:
    done = bare("init")
    assert done.code == 4 and "no Slurm here" in done.err and files(bare) == []
    bare.write("train.py", SCRIPT)
    answer = checked(bare("init", "train.py", "--json"))
    assert answer["action"] == "none" and answer["job"]["written"]
    assert "jobs/train.yaml" in files(bare) and "hpcrun.yaml" not in files(bare)
    assert "  hpcrun run train     run it here\n" in bare("init", "train.py", "--yes").out
    assert bare("init", "--check").code == 2


def test_existing_job_file_is_not_overwritten_without_asking(bare: Caller, slurm: Slurm) -> None:
    bare.write("train.py", SCRIPT)
    bare.write("jobs/train.yaml", "script: train.py # mine\n")
    answer = checked(bare("init", "train.py", "--json"))
    assert not answer["job"]["written"] and answer["defaults"]["overwrite"] == "no"
    assert (bare.project / "jobs/train.yaml").read_text() == "script: train.py # mine\n"


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("nothing.py", "no such script"),
        (".", "a folder"),
        ("bad.py", "bad.py:1: cannot be read as Python 3."),
        ("bad.sh", "bad.sh:1: invalid Python"),
        ("bytes.py", "not UTF-8"),
        ("/etc/hostname", "outside the project"),
        ("a\nb.py", "'a\\nb.py': a name with a character that cannot be printed"),
    ],
)
def test_unreadable_scripts_are_refused(
    bare: Caller, slurm: Slurm, script: str, message: str
) -> None:
    bare.write("bad.py", "def (")
    bare.write("bad.sh", "exec python train.py")
    (bare.project / "bytes.py").write_bytes(b"x = '\xff'\n")
    done = bare("init", script, "--yes")
    assert done.code == 2 and message in done.err
    assert ("a shell script is a command" in done.err) == (script == "bad.sh")
    assert files(bare) == ["bad.py", "bad.sh", "bytes.py"]


@pytest.mark.slow
def test_user_profile_is_written_and_found(bare: Caller, slurm: Slurm) -> None:
    answer = checked(bare("init", "--user", "--json"))
    clusters = Path(bare.environ["HOME"]) / ".config" / "hpcrun" / "clusters"
    assert answer["profile"] == str(clusters / "hot.yaml")
    assert (clusters / "cluster.schema.json").is_file() and files(bare) == []
    assert bare("submit", "single-gpu", "--cluster", "hot", "--dry-run").code == 0
    # It is found by its name from anywhere, and without a name as the only profile.
    assert checked(bare("init", "--cluster", "hot", "--json"))["action"] == "unchanged"
    assert checked(bare("init", "--json"))["action"] == "unchanged"
    (clusters / "cold.yaml").write_text("name: cold\n")
    bare.environ["HPCRUN_CLUSTER"] = "hot"
    assert checked(bare("init", "--json"))["profile"] == str(clusters / "hot.yaml")
    assert files(bare) == []


@pytest.mark.slow
def test_profile_of_another_cluster_is_refused(bare: Caller, slurm: Slurm) -> None:
    bare("init", "--yes")
    done = bare("init", "--cluster", "cold", "--yes")
    assert done.code == 2 and "--user --cluster cold" in done.err
    assert bare("init", "--cluster", "hot", "--yes").code == 0


def test_invalid_profile_is_not_changed(bare: Caller, slurm: Slurm) -> None:
    path = bare.write("hpcrun.yaml", "partitons: {}\n")
    done = bare("init", "--yes")
    assert done.code == 2 and "did you mean partitions" in done.err
    assert path.read_text() == "partitons: {}\n"


def test_unwritable_folder_is_reported(bare: Caller, slurm: Slurm) -> None:
    bare.write("train.py", SCRIPT)
    bare.write("jobs", "a file")
    done = bare("init", "train.py", "--yes")
    assert done.code == 2 and "jobs: not a folder" in done.err
    assert files(bare) == ["jobs", "train.py"]


# ---- interactive use ---------------------------------------------------------------------------


class Terminal:
    """hpcrun on a new terminal."""

    def __init__(self, caller: Caller, *argv: str) -> None:
        self.process, self.fd = caller.on_terminal(*argv)
        self.shown = ""

    def until(self, text: str) -> None:
        """Read until the text appears in the output since the last call."""
        deadline = time.monotonic() + PATIENCE
        new = ""
        while text not in new:
            assert time.monotonic() < deadline, f"no {text!r} in\n{self.shown}"
            if select.select([self.fd], [], [], 0.2)[0]:
                try:
                    new += os.read(self.fd, 4096).decode()
                except OSError:  # the other side is closed
                    break
                self.shown += new[-4096:]
        assert text in new, self.shown

    def type(self, text: str) -> None:
        os.write(self.fd, text.encode())

    def end(self) -> int:
        code = self.process.wait()
        os.close(self.fd)
        return code


@pytest.mark.slow
def test_questions_appear_on_a_terminal(bare: Caller, slurm: Slurm) -> None:
    both = NODES + "long|20|128|512000|mixed|g[01-20]|gpu:a100:4(S:0-1)|ib\n"
    slurm.answer("sinfo", both)
    slurm.answer("partition", PARTITIONS + "PartitionName=long MaxTime=7-0 State=UP\n")
    scratch = bare.project.parent / "scratch"
    scratch.mkdir()
    bare.environ["SCRATCH"] = str(scratch)
    terminal = Terminal(bare, "init")
    terminal.until("which [gpu]")
    terminal.type("nonsense\n")
    terminal.until("which [gpu]")
    terminal.type("long\n")
    terminal.until("which [$SCRATCH]")
    terminal.type("\n")
    terminal.until("internet? [Y/n]")
    terminal.type("n\n")
    terminal.until("wrote hpcrun.yaml")
    assert terminal.end() == 0
    made = profile(bare)
    assert made["partition"] == "long" and made["internet"] is False
    assert made["runs_dir"] == "$SCRATCH/hpcrun/runs"


@pytest.mark.slow
def test_profile_created_meanwhile_is_not_overwritten(bare: Caller, slurm: Slurm) -> None:
    terminal = Terminal(bare, "init")
    terminal.until("internet? [Y/n]")
    bare.write("hpcrun.yaml", "name: mine\n")
    terminal.type("\n")
    terminal.until("was changed during")
    assert terminal.end() == 2
    assert (bare.project / "hpcrun.yaml").read_text() == "name: mine\n"


def test_line_ends_are_preserved(bare: Caller, slurm: Slurm) -> None:
    bare("init", "--yes")
    path = bare.project / "hpcrun.yaml"
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    slurm.answer("partition", PARTITIONS.replace("2-00:00:00", "1-00:00:00"))
    assert checked(bare("init", "--json"))["action"] == "updated"
    text = path.read_bytes()
    assert text.count(b"\n") == text.count(b"\r\n") and b"1-00:00:00" in text


@pytest.mark.slow
def test_ctrl_c_at_a_question_writes_nothing(bare: Caller, slurm: Slurm) -> None:
    terminal = Terminal(bare, "init")
    terminal.until("internet? [Y/n]")
    # Python's input() misses a signal just before it starts to read, so repeat it like a user.
    while terminal.process.poll() is None:
        terminal.process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            terminal.process.wait(timeout=1)
    assert terminal.end() == 130
    assert files(bare) == []


def test_site_without_gres_is_asked_for_gpus_per_partition(bare: Caller, slurm: Slurm) -> None:
    rows = [f"{name}|2|128|256000|idle|c[1-2]|(null)|(null)" for name in ("normal", "gpu-a100")]
    slurm.answer("sinfo", "\n".join(rows) + "\n")
    slurm.answer(
        "partition",
        "PartitionName=normal Default=YES MaxTime=2-00:00:00 State=UP\n"
        "PartitionName=gpu-a100 MaxTime=2-00:00:00 State=UP\n",
    )
    bare.environ["SLURM_HINT"] = "nomultithread"
    assert checked(bare("init", "--json"))["action"] == "created"
    made = profile(bare)
    assert "accelerator" not in made and made["partition"] == "gpu-a100"
    assert made["partitions"]["gpu-a100"]["gpus_per_node"] == 1
    assert made["slurm"] == {"gres": False, "hint": "nomultithread"}
    assert "CHECK: its name suggests GPUs" in (bare.project / "hpcrun.yaml").read_text()


def test_default_gpu_type_is_a_whole_gpu_if_there_are_slices(bare: Caller, slurm: Slurm) -> None:
    """Half of the nodes of Fir and Rorqual have slices of the GPUs of the other half."""
    rows = [
        "gpu|80|48|1152000|idle|a[1-80]|gpu:h100:4|(null)",
        "gpu|80|48|1152000|idle|b[1-80]|gpu:nvidia_h100_80gb_hbm3_1g.10gb:16|(null)",
    ]
    slurm.answer("sinfo", "\n".join(rows) + "\n")
    checked(bare("init", "--json"))
    made = profile(bare)
    assert (made["partition"], made["gpu_type"]) == ("gpu", "h100")
    done = bare("submit", "single-gpu", "--dry-run", "--no-check")
    assert "#SBATCH --gres=gpu:h100:1\n" in done.out, done
    # If all GPUs are whole, or all are slices, there is no default type.
    slurm.answer("sinfo", rows[1] + "\n")
    (bare.project / "hpcrun.yaml").unlink()
    checked(bare("init", "--json"))
    assert "gpu_type" not in profile(bare)


def test_profile_starts_from_a_bundled_one(bare: Caller) -> None:
    done = bare("init", "--like", "lumi-g", "--yes")
    assert "was never tested" in done.err
    made = profile(bare)
    assert (made["name"], made["accelerator"], made["fabric"]) == ("lumi-g", "rocm", "slingshot")
    assert made["runs_dir"] == "~/hpcrun/runs"  # USER is not set here
    again = bare("init", "--like", "lumi-g", "--yes")
    assert again.code == 2 and "a profile already exists" in again.err


def test_bundled_profile_is_updated_from_slurm(bare: Caller, slurm: Slurm) -> None:
    bare.environ["USER"] = "me"
    answer = checked(bare("init", "--like", "mahti", "--cluster", "hot", "--json"))
    made = profile(bare)
    assert answer["action"] == "updated" and made["name"] == "hot"
    assert made["partitions"]["gpu"]["cpus_per_node"] == 124 and made["fabric"] == "infiniband"


def test_misspelt_site_is_refused(bare: Caller) -> None:
    done = bare("init", "--like", "lumig", "--yes")
    assert done.code == 2 and "did you mean lumi-g?" in done.err
    assert not (bare.project / "hpcrun.yaml").exists()


# Links of a cloned repository, and the files that init would write through them.
LINKS = {
    ".hpcrun/job.schema.json": "home/.bashrc",
    ".hpcrun/cluster.schema.json": "home/new file",
    ".hpcrun/.gitignore": "home/.bashrc",
    ".hpcrun": "home",
    "hpcrun.yaml": "home/.config/autostart/new",
    "jobs/train.yaml": "home/.bash_profile",
    "jobs": "home/.config/fish",
}


@pytest.mark.slow
@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize("how", ["relative", "absolute", "of a link"])
def test_init_does_not_write_through_links_out_of_the_project(
    bare: Caller, slurm: Slurm, link: str, how: str
) -> None:
    home = bare.project.parent
    for name in (".bashrc", ".config/autostart/kept", ".config/fish/config.fish"):
        (home / "home" / name).parent.mkdir(parents=True, exist_ok=True)
        (home / "home" / name).write_text("mine\n")
    bare.write("train.py", SCRIPT)
    path, target = bare.project / link, home / LINKS[link]
    path.parent.mkdir(exist_ok=True)
    if how == "of a link":
        (bare.project / "between").symlink_to(target)
        target = bare.project / "between"
    path.symlink_to(os.path.relpath(target, path.parent) if how == "relative" else target)
    before = sorted((home / "home").rglob("*"))
    done = bare("init", "train.py", "--yes")
    assert (
        done.code == 2 and f"{path}: a symbolic link to a file outside the project" in done.err
    ), done
    assert sorted((home / "home").rglob("*")) == before
    assert (home / "home" / ".bashrc").read_text() == "mine\n"
    assert not (bare.project / "jobs/train.yaml").exists()


def test_init_does_not_write_through_links_into_the_git_folder(bare: Caller, slurm: Slurm) -> None:
    hooks = bare.write(".git/hooks/kept", "").parent
    bare.write("train.py", SCRIPT)
    (bare.project / "jobs").mkdir()
    (bare.project / "jobs" / "train.yaml").symlink_to("../.git/hooks/pre-commit")
    done = bare("init", "train.py", "--yes")
    assert done.code == 2 and "jobs/train.yaml: a symbolic link" in done.err, done
    assert [path.name for path in hooks.iterdir()] == ["kept"]


def test_init_follows_links_inside_the_project_and_in_the_user_configuration(
    bare: Caller, slurm: Slurm
) -> None:
    bare.write("train.py", SCRIPT)
    (bare.project / "all jobs").mkdir()
    (bare.project / "jobs").symlink_to("all jobs")
    assert bare("init", "train.py", "--yes").code == 0
    assert (bare.project / "all jobs" / "train.yaml").is_file()
    clusters = Path(bare.environ["HOME"]) / ".config/hpcrun/clusters"
    clusters.mkdir(parents=True)
    (clusters / "hot.yaml").symlink_to(bare.project.parent / "dotfiles.yaml")
    (bare.project / "hpcrun.yaml").unlink()
    done = bare("init", "--user", "--cluster", "hot", "--yes")
    assert done.code == 0 and "name: hot" in (bare.project.parent / "dotfiles.yaml").read_text()


@pytest.mark.parametrize("end", ["\n", "\r", "\x85", "\u2028", "\u2029", "\x0c"])
def test_names_in_draft_comments_do_not_break_lines(bare: Caller, slurm: Slurm, end: str) -> None:
    evil = f"--data{end}setup: {{commands: [id]}}"
    bare.write(
        "train.py",
        "import argparse, torch\nparser = argparse.ArgumentParser()\n"
        f"parser.add_argument({evil!r}, required=True)\n"
        f"parser.add_argument({evil[2:]!r})\nparser.parse_args()\n",
    )
    slurm.answer(
        "sinfo", NODES.replace("ib", f"ib{end}python: /evil" if end not in "\n\r" else "ib")
    )
    done = bare("init", "train.py", "--yes")
    assert done.code == 0, done
    job = yaml.safe_load((bare.project / "jobs/train.yaml").read_text())
    assert "commands" not in job.get("setup", {})
    assert "setup: {commands" in (bare.project / "jobs/train.yaml").read_text()  # a comment
    assert profile(bare).get("python") != "/evil"


def test_the_name_of_another_cluster_of_the_accounting_is_refused(
    bare: Caller, slurm: Slurm
) -> None:
    """As at sites where -M reaches several: Slurm's commands without it ask this one."""
    slurm.answer("config", CONFIG.replace("accounting_storage/none", "accounting_storage/slurmdbd"))
    slurm.answer("sacctmgr", "hot\nhpda\n")
    done = bare("init", "--cluster", "hpda", "--yes")
    assert done.code == 2 and "Slurm's commands here belong to hot" in done.err, done
    assert not (bare.project / "hpcrun.yaml").exists()
    slurm.answer("sacctmgr", "", code=1)
    assert bare("init", "--cluster", "my-own-name", "--yes").code == 0


def test_the_slurm_conf_of_the_shell_is_kept(bare: Caller, slurm: Slurm) -> None:
    conf = bare.project.parent / "site" / "slurm.conf"
    conf.parent.mkdir()
    conf.touch()
    bare.environ["SLURM_CONF"] = str(conf)
    assert bare("init", "--yes").code == 0
    assert profile(bare)["slurm_conf"] == str(conf)
    del bare.environ["SLURM_CONF"]
    assert checked(bare("init", "--json"))["action"] == "unchanged"


# ---- modules and packages ----------------------------------------------------------------------

PROGRAM = "import torch\ndef main():\n    print('step 1 loss 2')\n"
MAIN_GUARD = "if __name__ == '__main__':\n    main()\n"


def job_file(hpcrun: Caller, name: str) -> Any:
    return yaml.safe_load((hpcrun.project / "jobs" / f"{name}.yaml").read_text())


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["-m", "lab.fit"], "fit"),
        (["lab.fit"], "fit"),
        (["lab-fit"], "lab-fit"),
        (["-m", "lab.tools"], "tools"),
    ],
)
@pytest.mark.parametrize("top", [".", "src"])
def test_module_and_console_script_are_drafted(
    bare: Caller, slurm: Slurm, words: list[str], name: str, top: str
) -> None:
    bare.write("pyproject.toml", '[project.scripts]\nlab-fit = "lab.fit:main"\n[tool.x]\na = 1\n')
    bare.write(f"{top}/lab/__init__.py", "")
    bare.write(f"{top}/lab/fit.py", PROGRAM + MAIN_GUARD)
    bare.write(f"{top}/lab/tools/__main__.py", PROGRAM + MAIN_GUARD)
    assert bare("init", *words, "--yes").code == 0
    made = job_file(bare, name)
    assert made["module"] == ("lab.tools" if name == "tools" else "lab.fit")
    path = made.get("env", {}).get("PYTHONPATH")
    assert path == ("{code_dir}/src" if top == "src" else None)
    dry = bare("submit", name, "--dry-run")
    assert dry.code == 0, dry


def test_console_script_without_a_main_guard_is_run_as_installed(
    bare: Caller, slurm: Slurm
) -> None:
    bare.write("setup.py", "setup(entry_points={'console_scripts': ['lab-fit = lab.fit:main']})")
    bare.write("lab/fit.py", PROGRAM)
    environment = make_environment(bare.project / ".venv")
    done = bare("init", "lab-fit", "--yes")
    assert "does nothing when it is run with -m" in " ".join(done.err.split())
    (environment / "bin" / "lab-fit").write_text("#!/usr/bin/python\n")
    (bare.project / "jobs" / "lab-fit.yaml").unlink()
    assert bare("init", "lab-fit", "--yes").code == 0
    assert job_file(bare, "lab-fit")["script"] == str(environment / "bin" / "lab-fit")


def test_script_that_imports_a_src_layout_gets_its_path(bare: Caller, slurm: Slurm) -> None:
    bare.write("src/lab/__init__.py", "")
    bare.write("src/lab/net.py", "import torch\n")
    bare.write("scripts/train.py", "from lab.net import torch\nprint('step 1 loss 1')\n")
    bare.write("src/train.py", "from lab.net import torch\nprint('step 1 loss 1')\n")
    assert bare("init", "scripts/train.py", "--yes").code == 0
    assert job_file(bare, "train")["env"] == {"PYTHONPATH": "{code_dir}/src"}
    (bare.project / "jobs" / "train.yaml").unlink()
    assert bare("init", "src/train.py", "--yes").code == 0  # Python finds lab beside the script
    assert "env" not in job_file(bare, "train")


def test_script_without_its_ending_is_found(bare: Caller, slurm: Slurm) -> None:
    bare.write("train.py", PROGRAM + MAIN_GUARD)
    assert bare("init", "train", "--yes").code == 0
    assert job_file(bare, "train")["script"] == "train.py"


@pytest.mark.parametrize(
    ("module", "fault"),
    [
        ("lab.fti", "did you mean lab.fit?"),
        ("labb.fit", "neither the project nor"),
        ("torch.distributed.nosuch", "neither the project nor"),
        ("nosuchpackage", "neither the project nor"),
        ("lab.fit", ""),
        ("torch.distributed.run", ""),
    ],
)
def test_misspelt_module_is_refused(hpcrun: Caller, module: str, fault: str) -> None:
    hpcrun.write("lab/__init__.py", "")
    hpcrun.write("lab/fit.py", PROGRAM + MAIN_GUARD)
    hpcrun.write("jobs/train.yaml", f"module: {module}\n")
    done = hpcrun("submit", "train", "--dry-run")
    assert done.code == (2 if fault else 0) and fault in " ".join(done.err.split()), done


def test_script_for_one_gpu_is_drafted_and_noted_as_such(bare: Caller, slurm: Slurm) -> None:
    bare.write("train.py", "import torch\nimport net\nprint('step 1 loss 2')\n")
    bare.write("net.py", "import torch.nn\n")
    assert bare("init", "train.py", "--yes").code == 0
    assert job_file(bare, "train")["resources"]["gpus_per_node"] == 1
    done = bare("submit", "train", "--gpus-per-node", "4", "--dry-run")
    assert "4 copies of it would train apart" in " ".join(done.err.split())
    bare.write("net.py", "import torch.distributed\n")
    done = bare("submit", "train", "--gpus-per-node", "4", "--dry-run")
    assert "would train apart" not in done.err


# ---- which Python ------------------------------------------------------------------------------


@pytest.fixture
def without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide torch from hpcrun's own Python and from the system's."""
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *more: None if name == "torch" else find(name)
    )
    monkeypatch.setattr(survey, "_HAS_TORCH", "print(0)")


@pytest.mark.parametrize(
    ("place", "kind"), [(".venv", "venv"), ("env", "conda"), (".pixi/envs/default", "conda")]
)
def test_init_again_names_an_environment_that_was_created_since(
    bare: Caller, slurm: Slurm, without_torch: None, place: str, kind: str
) -> None:
    bare.write("train.py", "import torch\nprint('step 1 loss 2')\n")
    first = bare("init", "train.py")
    assert first.code == 0 and "python3 -m venv .venv" in first.err, first
    assert not {"python", "setup"} & profile(bare).keys()
    assert "no Python for the training" in bare("submit", "train", "--dry-run").err
    make_environment(bare.project / place, kind=kind)
    again = checked(bare("init", "train.py", "--json"))
    assert again["action"] == "updated" and again["changed"][0]["key"] == "setup"
    assert profile(bare)["setup"] == {kind: place}
    assert "CHECK: no Python" not in (bare.project / "hpcrun.yaml").read_text()
    assert checked(bare("init", "train.py", "--json"))["changed"] == []


def test_init_replaces_a_python_without_torch(
    bare: Caller, slurm: Slurm, without_torch: None
) -> None:
    assert bare("init", "--yes").code == 0
    text = (bare.project / "hpcrun.yaml").read_text()
    bare.write("hpcrun.yaml", f"{text}python: {sys.executable}\n")
    assert checked(bare("init", "--json"))["changed"] == []
    make_environment(bare.project / "venv")
    assert checked(bare("init", "--json"))["changed"][0]["before"] == sys.executable
    assert profile(bare)["setup"] == {"venv": "venv"} and "python" not in profile(bare)


def test_init_keeps_an_environment_that_the_profile_names(
    bare: Caller, slurm: Slurm, without_torch: None
) -> None:
    assert bare("init", "--yes").code == 0
    text = (bare.project / "hpcrun.yaml").read_text()
    bare.write("hpcrun.yaml", f"{text}setup: {{venv: /opt/mine}}\n")
    make_environment(bare.project / ".venv")
    assert checked(bare("init", "--json"))["changed"] == []
    assert profile(bare)["setup"] == {"venv": "/opt/mine"}


def test_project_with_uv_lock_is_set_up_by_uv(
    bare: Caller, slurm: Slurm, without_torch: None
) -> None:
    bare.write("uv.lock", "")
    assert bare("init", "--yes").code == 0
    assert "setup" not in profile(bare)  # there is no uv here
    (bare.project / "hpcrun.yaml").unlink()
    (bare.tools / "uv").write_text("#!/bin/sh\n")
    (bare.tools / "uv").chmod(0o755)
    assert bare("init", "--yes").code == 0
    assert profile(bare)["setup"] == {"uv": True}


@pytest.mark.parametrize("place", [".venv", "venv", ".pixi/envs/default"])
def test_submission_uses_the_environment_of_the_project_and_says_so(
    hpcrun: Caller, without_torch: None, place: str
) -> None:
    hpcrun.write("train.py", "import torch\nprint('step 1 loss 2')\n")
    hpcrun.write("jobs/train.yaml", "script: train.py\n")
    refused = hpcrun("submit", "train", "--dry-run")
    assert refused.code == 2 and "no Python for the training" in refused.err
    kind = "conda" if "pixi" in place else "venv"
    make_environment(hpcrun.project / place, kind=kind)
    done = hpcrun("submit", "train", "--dry-run", "--no-check")
    assert done.code == 0, done
    assert f"{place}/bin/python; setup: {{{kind}: {place}}}" in " ".join(done.err.split())


@pytest.mark.slow
def test_init_asks_which_of_several_environments_trains(bare: Caller, slurm: Slurm) -> None:
    home = Path(bare.environ["HOME"])
    for name in ("speech", "vision"):
        make_environment(home / "miniconda3" / "envs" / name, kind="conda")
    bare.environ["CONDA_PREFIX"] = str(home / "miniconda3" / "envs" / "vision")
    bare.environ["CONDA_DEFAULT_ENV"] = "vision"
    terminal = Terminal(bare, "init")
    terminal.until("which [vision]")
    terminal.type("speech\n")
    terminal.until("internet? [Y/n]")
    terminal.type("\n")
    terminal.until("wrote hpcrun.yaml")
    assert terminal.end() == 0
    assert profile(bare)["setup"] == {"conda": "speech"}


def test_sbatch_script_becomes_a_job_with_a_list_of_what_it_lacks(hpcrun: Caller) -> None:
    hpcrun.write("hpcrun.yaml", "partitions: {gpu: {}}\n")
    hpcrun.write("old.sbatch", "#!/bin/bash\n#SBATCH --gpus=1 -J x\necho a\npython t.py $1\n")
    answer = hpcrun("init", "old.sbatch", "--json", "--", "--lr=1").json
    check_json("init", answer)
    made = answer["job"]["conversion"]
    assert made["complete"] and made["before"] == "python t.py $1"
    assert [(one["line"], one["effect"]) for one in made["remarks"]] == [(3, "replaced")]
    written = yaml.safe_load((hpcrun.project / "jobs" / "old.yaml").read_text())
    assert (written["name"], written["command"]) == ("x", ["python", "t.py", "--lr=1"])

    hpcrun.write("mpi.sbatch", "#!/bin/bash\n#SBATCH -N2 --gpus=2\nmpirun -n 2 python t.py\n")
    shown = hpcrun("init", "mpi.sbatch").out
    assert "not carried over:\n" in shown and "mpirun starts the ranks" in shown
    assert "the job is incomplete" in shown
    refused = hpcrun("init", "t.py", "--", "a")
    assert refused.code == 2 and "arguments are only those of an sbatch script" in refused.err


def test_commands_of_the_guide_convert_scripts(hpcrun: Caller) -> None:
    """The second block of docs/coming-from.md, on two small scripts."""
    guide = (ROOT / "docs" / "coming-from.md").read_text(encoding="utf-8")
    block = guide.split("```console\n")[2].partition("```")[0]
    hpcrun.write("hpcrun.yaml", "partitions: {gpu: {}}\n")
    for name in ("old", "train"):
        hpcrun.write(f"{name}.sbatch", '#!/bin/bash\n#SBATCH --gpus=1\npython t.py "$@"\n')
    lines = [line.removeprefix("$ hpcrun ").split(" #")[0] for line in block.splitlines()]
    assert [line.split()[0] for line in lines] == ["init", "init", "submit"]
    for line in lines:
        done = hpcrun(*line.split(), *(["--no-check"] if line.startswith("submit") else []))
        assert done.code == 0, (line, done)
    written = yaml.safe_load((hpcrun.project / "jobs" / "train.yaml").read_text())
    assert written["command"] == ["python", "t.py", "--lr", "0.1"]


@pytest.mark.parametrize(
    ("read", "elsewhere", "workdir"),
    [
        ('open("../data/cora/c.txt")', "data/cora/c.txt", "pygcn"),  # tkipf/pygcn
        ('open("vocab.txt")', "pygcn/vocab.txt", "pygcn"),
        ('open("data/c.txt")', "data/c.txt", None),  # from the project
        ('open("vocab.txt")', "other/vocab.txt", None),  # a file that the script creates
        ('open(os.path.join(os.path.dirname(__file__), "v.txt"))', "pygcn/v.txt", None),
        ('open("v.txt"), open("setup.cfg")', "pygcn/v.txt", None),
    ],
)
def test_folder_of_relative_paths_is_drafted_as_workdir(
    bare: Caller, slurm: Slurm, read: str, elsewhere: str, workdir: str | None
) -> None:
    bare.write("setup.cfg", "")
    bare.write(elsewhere, "")
    bare.write("pygcn/utils.py", f"import os, torch\ndef load(): return {read}\n")
    bare.write("pygcn/train.py", "import torch\nimport utils\nutils.load()\n")
    bare("init", "pygcn/train.py", "--yes")
    job = job_file(bare, "train")
    assert (job["script"], job.get("workdir")) == ("pygcn/train.py", workdir)
    if workdir:
        assert "exists from this folder" in (bare.project / "jobs/train.yaml").read_text()
