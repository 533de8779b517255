"""Ranks in a real container: `make test-containers`, if apptainer or singularity is installed.

Debian has no package of it, so CI only renders and checks the same scripts
(tests/render/test_golden.py, cases apptainer and pyxis-2node).
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.environment_job import left_on_nodes, run_job, shown, write_data, write_job
from tests.cluster.site import Site

APPTAINER = shutil.which("apptainer") or shutil.which("singularity")


def build_image(folder: Path) -> Path:
    """Build an image that contains only variables; the tests mount the system's /usr.

    Its OMP_NUM_THREADS and HF_HOME would override those of the shell.
    """
    root = folder / "root"
    for name in ("usr", "etc", "proc", "sys", "dev", "tmp", "var/tmp", "root"):
        (root / name).mkdir(parents=True)
    for name in ("bin", "lib", "lib64"):
        (root / name).symlink_to(f"usr/{name}")
    for name in ("passwd", "group", "hosts", "resolv.conf", "localtime"):
        (root / "etc" / name).touch()
    (folder / "image.def").write_text(
        f"Bootstrap: localimage\nFrom: {root}\n%environment\n"
        "    export OMP_NUM_THREADS=99 HF_HOME=/the/images OWN='the image'\n"
    )
    image = folder / "an image.sif"
    build = [str(APPTAINER), "build", str(image), str(folder / "image.def")]
    done = subprocess.run(build, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return image


@pytest.mark.parametrize("launcher", ["torchrun", "srun"])
def test_ranks_run_in_the_apptainer_image(site: Site, tmp_path: Path, launcher: str) -> None:
    """The ranks run in the image, with the variables and folders of the job."""
    write_data(site)
    image = build_image(site.project)
    image.rename(site.project / "images.sif")
    mounts = ["/usr", sys.base_prefix, sys.prefix, f"{site.project}/one.txt:/one"]
    odd = 'a$(id)`id` $HOME "q" it\'s\n\\x'
    write_job(
        site,
        {
            "launcher": launcher,
            "resources": {"nodes": 2, "gpus_per_node": 2},
            "args": ["{local_dir}", "$HOME"],
            "env": {"HF_HOME": "/the/jobs", "ODD": odd, "CACHE": "{local_dir}/x"},
            "secrets": ["TOKEN"],
            "stage": {"data set": "data"},
            "setup": {
                "container": {"image": "images.sif", "mounts": mounts},
                "python": sys.executable,
                "node_commands": ["read -r ONE </one", "export ONE"],
            },
        },
    )
    run = run_job(site, env={"TOKEN": odd})
    for rank in range(4):
        seen = shown(run, rank)
        environ = seen["environ"]
        assert environ["OWN"] == "the image"
        assert (environ["HF_HOME"], environ["OMP_NUM_THREADS"]) == ("/the/jobs", "1")
        assert environ["ODD"] == environ["TOKEN"] == odd
        assert environ["ONE"] == "one"
        assert environ["CACHE"] == f"{environ['HPCRUN_LOCAL_DIR']}/x"
        assert seen["argv"] == [environ["HPCRUN_LOCAL_DIR"], "$HOME"]
        assert seen["cwd"] == str(site.project)
        assert seen["files"]["data/a.txt"] == "a\n"
        assert not [name for name in environ if name.startswith("HPCRUN_KEPT")]
    assert left_on_nodes(site) == {}
