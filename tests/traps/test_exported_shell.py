"""What the submitting shell exports of its own ways (sbatch --export=ALL) breaks no job."""

from __future__ import annotations

import pytest

from tests.traps.conftest import Maker

pytestmark = pytest.mark.slow

BUILTINS = ("cd", "unset", "set", "export", "exec", "builtin", "command", "[", "printf", "trap")
COMMANDS = ("grep", "mkdir", "srun", "scontrol", "bash", "date", "find", "rm", "python3", "sed")


def functions(*names: str) -> dict[str, str]:
    """Return the environment of a shell that has exported these functions."""
    return {f"BASH_FUNC_{name}%%": "() {  echo hidden; return 3\n}" for name in names}


@pytest.mark.parametrize(
    "exported",
    [
        {"POSIXLY_CORRECT": "1"},
        {"SHELLOPTS": "braceexpand:errexit:noclobber:noglob:nounset:physical:pipefail"},
        {"BASHOPTS": "dotglob:extglob:failglob:lastpipe:nocasematch:nullglob:xpg_echo"},
        functions(*BUILTINS),
        functions(*COMMANDS),
        {"CDPATH": "/tmp", "GLOBIGNORE": "*", "GREP_OPTIONS": "--no-such-option"},
        {
            "POSIXLY_CORRECT": "1",
            "SHELLOPTS": "errexit:posix",
            "BASHOPTS": "failglob",
            # In POSIX mode bash itself refuses functions that are named like special builtins.
            **functions("cd", "command", "printf", *COMMANDS),
        },
    ],
    ids=["posix", "options", "shopt", "builtins", "commands", "variables", "all"],
)
def test_a_job_runs_whatever_the_shell_has_exported(
    exported: dict[str, str], make_job: Maker
) -> None:
    job = make_job("resources: {nodes: 2, gpus_per_node: 1}\nsetup: {commands: ['export DONE=1']}")
    assert job.go(**exported) == 0, job.log()
    assert job.record()["exit_code"] == 0
    shown = job.shown()
    assert [each["environ"]["DONE"] for each in shown] == ["1", "1"]
    assert "hidden" not in job.log()


def test_functions_of_environment_tools_stay(make_job: Maker) -> None:
    """Environment Modules and conda export theirs, which a job's setup calls."""
    job = make_job("setup: {commands: ['export LOADED=$(module load cuda)']}")
    assert job.go(**{"BASH_FUNC_module%%": "() {  echo module-$1-$2\n}"}) == 0, job.log()
    assert job.shown()[0]["environ"]["LOADED"] == "module-load-cuda"
