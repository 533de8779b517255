"""Jobs refused by checks are those that a real Slurm refuses or never starts."""

from __future__ import annotations

import json

import pytest

from tests.cluster.site import Site
from tests.waiting import until


@pytest.fixture
def limited(site: Site) -> Site:
    """A project whose profile contains the limits of the rig's partition."""
    text = site.rig.run("sinfo", "-h", "-o", "%P|%D|%c|%m|%G").stdout.splitlines()[0]
    name, nodes, cpus, memory, gres = text.split("|")
    facts = {
        "nodes": int(nodes),
        "cpus_per_node": int(cpus.rstrip("+")),
        "memory_per_node": memory.rstrip("+"),
        "gpus_per_node": int(gres.partition("(")[0].rpartition(":")[2]),
    }
    name = name.rstrip("*")
    profile = {**site.profile, "partition": name, "partitions": {name: facts}}
    return type(site)(site.rig, site.project, profile).prepare()


def test_jobs_refused_by_checks_would_never_start(limited: Site) -> None:
    facts = next(iter(limited.profile["partitions"].values()))
    (limited.project / "job.yaml").write_text("command: [hostname]\n")
    asked = {
        "nodes": facts["nodes"],
        "gpus_per_node": facts["gpus_per_node"],
        "memory_per_node": int(facts["memory_per_node"]),
    }
    most = [f"--set=resources.{key}={value}" for key, value in asked.items()]
    most.append(f"--set=resources.cpus_per_gpu={facts['cpus_per_node'] // facts['gpus_per_node']}")
    fits = limited.hpcrun("submit", "job.yaml", *most, "--test-only", "--json")
    assert fits.returncode == 0, fits.stderr
    assert json.loads(fits.stdout)["processors"] > 0
    runs = limited.rig.shared / "runs"
    before = sorted(runs.glob("*"))
    for key, value in asked.items():
        more = ["submit", "job.yaml", f"--set=resources.{key}={value + 1}"]
        ours = limited.hpcrun(*more)
        assert (ours.returncode, ours.stdout) == (2, "")
        assert f"--set: resources.{key}: {value + 1}: partition " in ours.stderr
        slurms = limited.hpcrun(*more, "--no-check", "--json")
        if slurms.returncode != 0:
            assert slurms.returncode == 3 and "Slurm refused the job: " in slurms.stderr
            continue
        # Slurm may accept the job but never start it (slurm.conf, EnforcePartLimits=NO).
        shown = json.loads(slurms.stdout)
        assert any(note.startswith(f"--no-check: resources.{key}: ") for note in shown["notes"])
        never_starts(limited, shown["job_id"])
        limited.rig.run("scancel", shown["job_id"])
    left = [path for path in runs.glob("*") if path not in before]
    assert len(left) <= 1  # of the job that Slurm accepted


HYDRA = """
import os, sys
import hydra
sys.path.insert(0, {folder})
import helper
@hydra.main(version_base=None, config_path="conf", config_name="config")
def main(cfg):
    print("helper", helper.WORD, "lr", cfg.lr, "bs", cfg.bs, "mine", "mine" in cfg)
main()
"""


@pytest.mark.parametrize(
    ("folder", "word"), [("os.getcwd()", "edited"), ("os.environ['HPCRUN_CODE_DIR']", "submitted")]
)
def test_code_edited_while_the_job_is_pending_is_not_used(
    site: Site, folder: str, word: str
) -> None:
    (site.project / "conf").mkdir()
    (site.project / "conf/config.yaml").write_text("{lr: 1, bs: 1}\n")
    (site.project / "conf/other.yaml").write_text("{lr: 1, bs: 1, mine: 1}\n")
    (site.project / "train.py").write_text(HYDRA.format(folder=folder))
    (site.project / "helper.py").write_text("WORD = 'submitted'\n")
    (site.project / "job.yaml").write_text(
        "script: train.py\nlauncher: srun\nargs: [bs=4]\nresources: {gpus_per_node: 1}\n"
        "slurm: {hold: true}\n"
    )
    # Hydra accepts options before or after its overrides, but not between them.
    words = ["--", "--config-name=other", "lr=2"]
    done = site.hpcrun("submit", "job.yaml", "--json", *words)
    assert done.returncode == 0, done.stderr
    submitted = json.loads(done.stdout)
    said = [note for note in submitted["notes"] if "when the job runs" in note]
    assert len(said) == (word == "edited")
    (site.project / "helper.py").write_text("WORD = 'edited'\n")
    site.rig.run("scontrol", "release", submitted["job_id"])
    assert site.hpcrun("wait", submitted["job_id"]).returncode == 0
    shown = site.hpcrun("logs", submitted["job_id"]).stdout
    assert f"helper {word} lr 2 bs 4 mine True" in shown, shown


def never_starts(site: Site, job_id: str) -> None:
    """Wait until Slurm shows a reason why a job can never start."""

    def reason() -> str:
        return site.rig.run("squeue", "-h", "-j", job_id, "-o", "%T %r").stdout.strip()

    until(lambda: reason().startswith("PENDING Partition"), "the reason of a job that cannot start")
