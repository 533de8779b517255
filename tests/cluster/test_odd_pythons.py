"""Runs on nodes with an old Python, with one that only the job's setup brings, and with none."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.rig import Rig
from tests.cluster.site import Site, Submitted
from tests.jobside.old_pythons import pythons
from tests.waiting import until

# Written in bash, as the nodes may have no Python: it saves and, in its first attempt, is requeued.
TRAIN = """
for step in 1 2 3 4 5 6; do
    echo "step: $step loss: 0.5"
    mkdir -p "$HPCRUN_CHECKPOINT_DIR/step_$step"
    echo weights >"$HPCRUN_CHECKPOINT_DIR/step_$step/model.bin"
    sleep 0.2
    if [ "$step" = 4 ] && [ "$HPCRUN_ATTEMPT" = 0 ]; then
        echo ended >"$HPCRUN_RUN_DIR/attempts/0/stalled"
        exit 1
    fi
done
echo "resumed from <$HPCRUN_RESUME>"
"""
JOB = """
command: [bash, train.sh]
launcher: srun
resources: {nodes: 1, gpus_per_node: 0, time: "10"}
survive: {when: [stalled]}
checkpoint: {keep: 2}
"""
# The Pythons of the system that a job may find: a node's own mounts hide them.
SYSTEM = [
    os.path.realpath(path)
    for path in ("/usr/bin/python3", "/usr/libexec/platform-python")
    if Path(path).exists()
]


@pytest.fixture
def odd_site(fresh_root: Path) -> Iterator[Site]:
    """A project on a rig of one node."""
    rig = Rig(fresh_root, nodes=1, accounting=False, pause=5)
    rig.start()
    try:
        yield Site(rig, rig.shared / "project", {"python": "python3"}).prepare()
    finally:
        rig.stop()


def replace_pythons(rig: Rig, by: str) -> None:
    """Mount a file over the Pythons of the node's system; of /dev/null nothing can be run."""
    for path in SYSTEM:
        done = rig.on_node(rig.node_names[0], ["mount", "--bind", by, path])
        assert done.returncode == 0, done.stderr


def submit(site: Site, *options: str, train: str = TRAIN) -> Submitted:
    """Submit a job that finds no Python but those of the system."""
    (site.project / "train.sh").write_text(train)
    (site.project / "job.yaml").write_text(JOB)
    return site.submit("./job.yaml", *options, env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"})


def test_run_continues_with_the_oldest_python(odd_site: Site) -> None:
    oldest = pythons()[-1]
    replace_pythons(odd_site.rig, os.path.realpath(oldest))
    run = submit(odd_site)
    assert odd_site.hpcrun("wait", run.run_id).returncode == 0, run.log()
    shown = odd_site.status(run)
    assert [each["end"]["why"] for each in shown["attempts"]] == ["stalled", "done"]
    log = (run.folder / "logs/1/rank-0.log").read_text()
    assert f"resumed from <{run.folder}/checkpoints/step_4>" in log
    # `keep: 2`, and the one from which the attempt resumed.
    left = sorted(path.name for path in (run.folder / "checkpoints").iterdir())
    assert left == ["step_4", "step_5", "step_6"]


def test_run_without_any_python_ends_with_its_record(odd_site: Site) -> None:
    replace_pythons(odd_site.rig, "/dev/null")
    run = submit(odd_site)
    assert odd_site.hpcrun("wait", run.run_id).returncode == 1, run.log()
    end = run.record("end.json")
    assert (end["exit_code"], end["next"]) == (1, None)
    assert "no Python 3.6 or newer answers on node1" in end["note"]
    assert (end["first_failure"]["exit_code"], end["first_failure"]["rank"]) == (1, 0)
    assert "the run does not continue by itself" in run.log()
    shown = odd_site.status(run)
    assert (shown["state"], shown["exit_code"]) == ("FAILED", 1)
    assert len(shown["attempts"]) == 1
    assert (run.folder / "checkpoints/step_4/model.bin").exists()


def test_stopped_run_without_any_python_has_a_record(odd_site: Site) -> None:
    replace_pythons(odd_site.rig, "/dev/null")
    run = submit(odd_site, train="echo step: 1; sleep 60 & wait\n")
    log = run.folder / "logs/0/rank-0.log"
    until(lambda: log.exists() and "step: 1" in log.read_text(), "the first line")
    assert odd_site.hpcrun("cancel", run.run_id).returncode == 0
    until((run.folder / "attempts/0/end.json").exists, "the end record")
    assert run.record("end.json")["stopped_by"] == "TERM"
    until(lambda: odd_site.status(run)["state"] == "CANCELLED", "the end in Slurm")


def test_python_of_the_setup_trains_and_that_of_the_system_decides(odd_site: Site) -> None:
    """As after `module load`: the job's Python is found in PATH only when its setup has run."""
    folder = odd_site.rig.shared / "module/bin"
    folder.mkdir(parents=True)
    (folder / "python-of-the-module").symlink_to(sys.executable)
    train = TRAIN + "python-of-the-module -c 'print(1 + 1, \"by the module\")'\n"
    setup = f"setup.commands=['export PATH={folder}:$PATH']"
    run = submit(odd_site, "--set", setup, train=train)
    assert odd_site.hpcrun("wait", run.run_id).returncode == 0, run.log()
    assert "2 by the module" in (run.folder / "logs/1/rank-0.log").read_text()
    assert len(odd_site.status(run)["attempts"]) == 2


def test_python_of_the_image_trains_where_the_node_has_none(odd_site: Site) -> None:
    """Apptainer is a stand-in that runs its command with a Python that nothing else finds."""
    rig, image = odd_site.rig, odd_site.rig.shared / "image/bin"
    image.mkdir(parents=True)
    (image / "python-of-the-image").symlink_to(sys.executable)
    (odd_site.project / "image.sif").touch()
    apptainer = rig.shared / "bin/apptainer"
    apptainer.parent.mkdir(exist_ok=True)
    apptainer.write_text(
        '#!/bin/bash\nuntil [ "$1" = bash ]; do shift; done\n'
        f'echo "in the image" >&2\nPATH={image}:$PATH exec "$@"\n'
    )
    apptainer.chmod(0o755)
    (odd_site.project / "train.py").write_text("print('step: 1 loss: 0.5')\n")
    (odd_site.project / "image.yaml").write_text(
        "script: train.py\nlauncher: srun\nresources: {nodes: 1, gpus_per_node: 2, time: '10'}\n"
        "setup:\n"
        "  container: {image: image.sif, runtime: apptainer}\n"
        "  python: python-of-the-image\n"
        f"  commands: ['export PATH={apptainer.parent}:$PATH']\n"
    )
    replace_pythons(rig, "/dev/null")
    run = odd_site.submit("./image.yaml", env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"})
    assert odd_site.hpcrun("wait", run.run_id).returncode == 0, run.log()
    for rank in (0, 1):
        assert (run.folder / f"logs/0/rank-{rank}.log").read_text() == "step: 1 loss: 0.5\n"
    assert "in the image" in (run.folder / "logs/0/node-0.log").read_text()
    assert run.record("end.json")["why"] == "done"
