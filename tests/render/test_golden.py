"""Rendered files, byte by byte: tests/golden/CASE/{job.yaml,cluster.yaml,templates/,files/}.

After an intended change, run ``python -m pytest tests/render --update-golden``, and review each
difference before you commit it.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from msgspec import structs

from hpcrun.assets import build_archive, build_hook, find_job, shipped_folder
from hpcrun.plan.build import build_plan
from hpcrun.plan.environment import HOOK
from hpcrun.plan.types import Plan
from hpcrun.render.environment import open_templates
from hpcrun.render.files import (
    ARCHIVE,
    FIXED,
    HOSTS_SCRIPT,
    RenderedFile,
    job_features,
    render_files,
)
from hpcrun.spec.load import load_cluster, load_job
from tests.needs import require_command
from tests.plan.making import PLACE
from tests.render.golden import GOLDEN
from tests.render.sbatch_grammar import read_script

# Users see the scripts and the DeepSpeed JSON; two cases show the schema of plan.json.
WITH_PLAN = {"accelerate-zero3-2node", "zero2-8gpu-2node"}
CASES = sorted(folder.name for folder in GOLDEN.iterdir() if (folder / "job.yaml").is_file())


def plan_of(case: str) -> Plan:
    """Plan a case as submit would, from its files only."""
    folder = GOLDEN / case

    def resolve(name: str) -> tuple[str, str]:
        path = find_job(name, folder, {"HOME": "/nonexistent"})
        return path.read_text(), str(path)

    job = load_job((folder / "job.yaml").read_text(), source="job.yaml", resolve=resolve)
    cluster = load_cluster((folder / "cluster.yaml").read_text(), source="cluster.yaml")
    place = PLACE
    if isinstance(
        job.resources.nodes, str
    ):  # as prepare() does for each number of nodes in a range
        place = structs.replace(PLACE, node_range=job.resources.nodes)
        job = job.with_nodes(job.resources.most_nodes - 1)
    # The scripts do not depend on the version of hpcrun.
    return structs.replace(build_plan(job, cluster, place), hpcrun_version="VERSION")


def rendered(case: str) -> list[RenderedFile]:
    return render_files(plan_of(case), open_templates(GOLDEN / case))


@pytest.mark.parametrize("case", CASES)
def test_rendered_files_match_the_golden_files(case: str, pytestconfig: pytest.Config) -> None:
    wanted = {file.name: file.text for file in rendered(case)}
    archive = wanted.pop(ARCHIVE).encode("utf-8", "surrogateescape")
    assert archive == build_archive(job_features(plan_of(case)))
    assert (HOSTS_SCRIPT in wanted) == bool(plan_of(case).hosts)
    for name in (*FIXED, *([HOSTS_SCRIPT] if HOSTS_SCRIPT in wanted else [])):
        assert wanted.pop(name) == (shipped_folder("templates") / name).read_text()
    assert wanted.pop(HOOK).encode("utf-8", "surrogateescape") == build_hook()
    if case not in WITH_PLAN:
        del wanted["plan.json"]
    folder = GOLDEN / case / "files"
    if pytestconfig.getoption("update_golden"):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        for name, text in wanted.items():
            (folder / name).write_text(text)
    assert {path.name for path in folder.iterdir()} == set(wanted)
    for name, text in wanted.items():
        assert (folder / name).read_text() == text


@pytest.mark.parametrize("case", CASES)
def test_golden_scripts_are_valid_bash(case: str) -> None:
    for file in rendered(case):
        if file.name in ("job.sbatch", "node.sh"):
            done = subprocess.run(
                ["bash", "-n"], input=file.text.encode(), capture_output=True, check=False
            )
            assert (done.returncode, done.stderr) == (0, b""), file.name


@pytest.mark.slow
def test_golden_scripts_pass_shellcheck(tmp_path: Path) -> None:
    require_command("shellcheck")
    files = []
    for case in CASES:
        for file in rendered(case):
            if file.name in ("job.sbatch", "node.sh"):
                path = tmp_path / f"{case}-{file.name}"
                path.write_text(file.text)
                files.append(str(path))
    files += [str(shipped_folder("templates") / name) for name in (*FIXED, HOSTS_SCRIPT)]
    done = subprocess.run(["shellcheck", *files], capture_output=True, text=True, check=False)
    assert done.stdout == "" and done.returncode == 0


@pytest.mark.parametrize("case", CASES)
def test_sbatch_parses_the_directives_of_the_plan(case: str) -> None:
    script = next(file.text for file in rendered(case) if file.name == "job.sbatch")
    assert read_script(script.encode()) == plan_of(case).directives


@pytest.mark.parametrize("case", CASES)
def test_golden_scripts_are_tidy(case: str) -> None:
    for file in rendered(case):
        if file.name in ("job.sbatch", "node.sh"):
            assert file.text.endswith("\n") and not file.text.endswith("\n\n")
            assert "\n\n\n" not in file.text, f"{file.name}: two empty lines"
            assert not [line for line in file.text.splitlines() if line != line.rstrip()]
            exports = re.findall(r"^export .*", file.text, re.MULTILINE)
            names = re.findall(r" (HPCRUN_\w+)=", "\n".join(exports))
            assert len(names) == len(set(names)), f"{file.name}: a variable is set twice"
