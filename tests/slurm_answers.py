"""Answers of Slurm's commands, in the formats that hpcrun asks for."""

from __future__ import annotations

from hpcrun.slurm.jobs import sacct_argv, squeue_argv

_SQUEUE = {
    "%i": "", "%A": "", "%T": "RUNNING", "%r": "None", "%M": "0:01", "%l": "1:00", "%D": "1",
    "%C": "1", "%N": "n1", "%S": "N/A", "%e": "N/A", "%P": "gpu", "%u": "me", "%U": "1000",
    "%a": "lab", "%q": "normal", "%Q": "1", "%E": "(null)", "%b": "N/A", "%Z": "/w", "%j": "n",
}  # fmt: skip
_SACCT = {
    "JobID": "", "JobIDRaw": "", "State": "COMPLETED", "ExitCode": "0:0", "Elapsed": "1",
    "Timelimit": "2", "Start": "s", "End": "e", "NNodes": "1", "NCPUS": "1", "NodeList": "n1",
    "Partition": "gpu", "User": "me", "Account": "lab", "QOS": "normal", "AllocTRES": "",
    "JobName": "n", "WorkDir": "/w",
}  # fmt: skip


def _own_number(job_id: str) -> str:
    """Make up Slurm's own number of an array's task."""
    return "".join(char if char.isdigit() else "0" for char in job_id)


def _asked(argv: list[str]) -> str:
    return next(word.partition("=")[2] for word in argv if word.startswith("--format="))


def squeue_row(job_id: str, state: str = "RUNNING", **values: str) -> str:
    """Write a job as squeue does; ``values`` by the letter of squeue's format, as Z for %Z."""
    given = {"%i": job_id, "%A": _own_number(job_id), "%T": state}
    row = _SQUEUE | given | {f"%{letter}": value for letter, value in values.items()}
    columns = _asked(squeue_argv()).rstrip("\x1e").split("\x1f")
    return "\x1f".join(row[column] for column in columns) + "\x1e\n"


def sacct_row(job_id: str, state: str = "COMPLETED", **values: str) -> str:
    """Write a job as sacct does; ``values`` by the name of sacct's field, as WorkDir."""
    row = _SACCT | {"JobID": job_id, "JobIDRaw": _own_number(job_id), "State": state} | values
    return "\x1f".join(row[field] for field in _asked(sacct_argv(["1"])).split(",")) + "\n"


def show_job(job_id: str, state: str = "RUNNING", **values: str) -> str:
    """Write a job as ``scontrol show job`` does; ``values`` by scontrol's keys."""
    array, _, task = job_id.partition("_")
    names = f" ArrayJobId={array} ArrayTaskId={task}" if task else ""
    head = f"JobId={values.pop('JobId', array)}{names} JobName={values.pop('JobName', 'n')}"
    known = {"UserId": "me(1000)", "Account": "lab", "JobState": state, "ExitCode": "0:0"}
    return (
        "\n   ".join([head, *(f"{key}={value}" for key, value in (known | values).items())])
        + "\n\n"
    )
