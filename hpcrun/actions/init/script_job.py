"""Write the job file that does what an sbatch script does."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from hpcrun.actions.init.init import SCHEMAS, InitState
from hpcrun.actions.lint import read_sourced_file
from hpcrun.context import read_text
from hpcrun.convert import Conversion, Remark, convert_script, format_converted_job
from hpcrun.errors import InputError, SpecError
from hpcrun.lint import SourcedFile
from hpcrun.spec import Cluster, load_job

_SHELL = re.compile(r"#!\s*(\S*/)?(env\s+(-\S+\s+)*)?(\S*/)?(ba|da|k|z)?sh(\s|$)")
# Keys that a job can lack; the script's own is then reported.
_MOST_REPAIRS = 20


class ConvertedJob(Struct, frozen=True, kw_only=True):
    """A job file made from an sbatch script: its path, text, and the conversion."""

    path: Path
    text: str
    source: str
    conversion: Conversion


def is_shell_script(name: str) -> bool:
    """Return True if a word names a file for sh or bash."""
    path = Path(name)
    if path.suffix == ".py" or not path.is_file():
        return False
    try:
        with path.open("rb") as file:
            return bool(_SHELL.match(file.readline(200).decode("utf-8", "replace")))
    except OSError:
        return False


def read_beside(name: str) -> SourcedFile | None:
    """Read a script in the directory of submission."""
    return read_sourced_file(name, [Path()])


def convert_script_file(
    found: InitState, cluster: Cluster, script: str, arguments: Sequence[str]
) -> ConvertedJob:
    """Convert an sbatch script of the current directory to a job of the project.

    Raises:
        InputError: The file is not a text.
    """
    path = Path(script)
    text = read_text(path)
    stem = re.sub(r"[^\w.-]", "-", path.stem)
    gpu_types = {one.gres: name for name, one in cluster.gpu_types.items() if one.gres}
    made = convert_script(
        text,
        stem,
        project=str(found.project),
        folder=str(Path.cwd()),
        home=found.environ.get("HOME", "~"),
        arguments=arguments,
        gpu_types=gpu_types,
        read_file=read_beside,
    )
    schema = f"../{SCHEMAS}/job.schema.json"
    source = path.name
    for _ in range(_MOST_REPAIRS):
        written = format_converted_job(made, source, schema)
        try:
            load_job(written, source=f"jobs/{stem}.yaml", resolve=_extends_nothing)
        except SpecError as error:
            if not _drop_refused(made, error):
                raise
        else:
            break
    file = found.project / "jobs" / f"{stem}.yaml"
    return ConvertedJob(path=file, text=written, source=source, conversion=made)


def _extends_nothing(name: str) -> tuple[str, str]:
    raise InputError(f"{name}: a converted job extends no other one")


def _drop_refused(made: Conversion, error: SpecError) -> bool:
    """Remove the keys that a job cannot have, and report them; False if there are none."""
    dropped = False
    for problem in error.problems:
        section, _, key = problem.path.partition(".")
        value = made.job.get(section)
        if isinstance(value, dict) and key in value:
            shown = f"{key}={value.pop(key)}"
            if not value:
                del made.job[section]
        elif section in made.job and not key:
            shown = f"{section}: {made.job.pop(section)}"
        else:
            continue
        dropped = True
        made.remarks.append(Remark(0, shown, "missing", problem.message))
    return dropped
