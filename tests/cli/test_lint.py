"""hpcrun lint on files, folders and standard input."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.calling import Caller

BAD = "#!/bin/bash\n#SBTACH -N 2\n#SBATCH --mem=64\npython -u train.py\n"
GOOD = "#!/bin/bash\n#SBATCH --time=1:00:00\npython -u train.py\n"


@pytest.fixture
def scripts(hpcrun: Caller) -> Path:
    """Write a folder with a bad script, a good one and a file that is no sbatch script."""
    folder = hpcrun.project / "scripts"
    (folder / "inner").mkdir(parents=True)
    (folder / "bad.sbatch").write_text(BAD)
    (folder / "inner" / "good.sh").write_text(GOOD)
    (folder / "setup.sh").write_text("#!/bin/bash\nset -u\nconda create -n x\n")
    return folder


def test_errors_set_the_exit_code(hpcrun: Caller, scripts: Path) -> None:
    done = hpcrun("lint", "scripts/bad.sbatch", "scripts/inner/good.sh")
    assert done.code == 1
    first = done.out.splitlines()[0]
    assert first == (
        "scripts/bad.sbatch:2:1: error: #SBTACH is a comment: sbatch ignores the line "
        "[misspelled-directive]"
    )
    assert "1 error, 1 warning, 3 notes in 2 scripts; --fix changes 1" in done.out
    assert hpcrun("lint", "scripts/inner/good.sh").code == 0


def test_folder_is_searched_for_sbatch_scripts(hpcrun: Caller, scripts: Path) -> None:
    found = hpcrun("lint", "--json", "scripts").json
    assert found["scripts"] == ["scripts/bad.sbatch", "scripts/inner/good.sh"]
    assert {one["rule"] for one in found["findings"]} >= {"misspelled-directive"}
    done = hpcrun("lint", "scripts/inner/..", "--severity", "error")
    assert done.out.count("error:") == 1 and "warning:" not in done.out


def test_fix_applies_safe_fixes_only_on_request(hpcrun: Caller, scripts: Path) -> None:
    script = scripts / "bad.sbatch"
    script.chmod(0o750)
    argv = [sys.executable, "-m", "hpcrun", "lint", "--fix", "scripts/bad.sbatch"]
    asked = subprocess.run(
        argv,
        input="n\n",
        capture_output=True,
        text=True,
        env=hpcrun.environ,
        cwd=hpcrun.project,
        check=False,
    )
    assert "-#SBTACH -N 2" in asked.stdout and "+#SBATCH -N 2" in asked.stdout
    assert script.read_text() == BAD
    done = hpcrun("lint", "--fix", "--yes", "scripts/bad.sbatch")
    assert script.read_text() == BAD.replace("SBTACH", "SBATCH")
    assert script.stat().st_mode & 0o777 == 0o750
    assert done.code == 0


@pytest.mark.parametrize("form", ["json", "sarif", "github"])
def test_formats_for_programs(hpcrun: Caller, scripts: Path, form: str) -> None:
    done = hpcrun("lint", "--format", form, "scripts/bad.sbatch")
    assert done.code == 1
    if form == "github":
        assert done.out.startswith("::error file=scripts/bad.sbatch,line=2,col=1,title=misspelled")
        return
    value = json.loads(done.out)
    if form == "sarif":
        results = value["runs"][0]["results"]
        known = {one["id"] for one in value["runs"][0]["tool"]["driver"]["rules"]}
        assert {one["ruleId"] for one in results} <= known
        place = results[0]["locations"][0]["physicalLocation"]
        assert place["region"] == {"startLine": 2, "startColumn": 1}


def test_standard_input_is_checked(clean_environ: dict[str, str], tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "hpcrun", "lint", "-"]
    done = subprocess.run(
        argv,
        input=BAD,
        capture_output=True,
        text=True,
        env=clean_environ,
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 1
    assert done.stdout.startswith("stdin:2:1: error:")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "no script given"),
        (["missing.sh"], "missing.sh: No such file"),
        (["scripts/inner/empty"], "no sbatch script in this folder"),
    ],
)
def test_bad_input_is_one_clear_error(
    hpcrun: Caller, scripts: Path, argv: list[str], message: str
) -> None:
    (scripts / "inner" / "empty").mkdir()
    done = hpcrun("lint", *argv)
    assert done.code == 2
    assert message in done.err and "Traceback" not in done.err
