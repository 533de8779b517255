"""A job that shows its environment."""

from __future__ import annotations

import json
from typing import Any

import yaml

from tests.cluster.site import Site, Submitted

# Each rank reports its host, its environment, and the contents of its node's local folder.
TELL = """
import json, os, pathlib, socket, sys
here = os.environ["HPCRUN_LOCAL_DIR"]
told = {
    "host": os.uname().nodename,
    "argv": sys.argv[1:],
    "environ": dict(os.environ),
    "cwd": os.getcwd(),
    "python": sys.executable,
    "prefix": sys.prefix,
    "files": {
        str(path.relative_to(here)): path.read_text()
        for path in sorted(pathlib.Path(here).rglob("*"))
        if path.is_file() and ".hpcrun" not in path.parts
    },
}
rank = os.environ.get("RANK", "0")
run = os.environ["HPCRUN_RUN_DIR"]
pathlib.Path(run, f"told-{rank}.part").write_text(json.dumps(told))
os.rename(f"{run}/told-{rank}.part", f"{run}/told-{rank}")
"""


def write_job(site: Site, job: dict[str, Any], program: str = TELL) -> None:
    """Write job.yaml and its program; by default one task without GPUs."""
    (site.project / "tell.py").write_text(program)
    base: dict[str, Any] = {"script": "tell.py", "launcher": "srun"}
    resources = {"gpus_per_node": 0, **job.pop("resources", {})}
    (site.project / "job.yaml").write_text(yaml.safe_dump({**base, **job, "resources": resources}))


def run_job(
    site: Site, *options: str, env: dict[str, str] | None = None, code: int = 0
) -> Submitted:
    """Submit job.yaml and follow it to its end."""
    run = site.submit("./job.yaml", *options, env=env)
    done = site.follow(run)
    assert done.returncode == code, done.stdout + done.stderr + run.log()
    return run


def shown(run: Submitted, rank: int = 0) -> dict[str, Any]:
    """Return the report of a rank."""
    answer: dict[str, Any] = json.loads((run.folder / f"told-{rank}").read_text())
    return answer


def left_on_nodes(site: Site, folder: str = "/tmp") -> dict[str, list[str]]:
    """Return the contents of hpcrun's folder on the disk of each node that has any."""
    found = {}
    for name in site.rig.node_names:
        if there := site.rig.folders(name, folder):
            found[name] = there
    return found


def write_data(site: Site) -> None:
    """Create a file, a folder with an internal link, and a read-only folder."""
    folder = site.project / "data set"
    (folder / "locked").mkdir(parents=True)
    (folder / "a.txt").write_text("a\n")
    (folder / "locked" / "b.txt").write_text("b\n")
    (folder / "locked").chmod(0o555)
    (folder / "link").symlink_to("a.txt")
    (site.project / "one.txt").write_text("one\n")
