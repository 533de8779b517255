"""Decide whether a program resumes from a checkpoint when it is started again."""

from __future__ import annotations

import re
from collections.abc import Sequence

from hpcrun.plan.launchers import decide_framework
from hpcrun.plan.script_facts import RESUME_KEYWORDS
from hpcrun.plan.script_notes import ProjectScript
from hpcrun.spec import JobSpec, set_variables

# Arguments that make a program resume, in the style of argparse or Hydra.
_RESUME_ARGUMENT = re.compile(
    r"[-+]{0,2}([\w.]*[._])?((auto|should)[-_])?(resume([-_]\w+)*|(load|restore|continue)[-_]\w*"
    r"|from[-_]checkpoint|ckpt[-_]path)",
    re.IGNORECASE,
)
_VARIABLES = ("HPCRUN_RESUME", "HPCRUN_CHECKPOINT_DIR", "HPCRUN_AFTER_CHECKPOINT_DIR")
_DISABLED = ("false", "no", "none", "null", "0", "")
# Calls and keywords that load the whole training state. Other calls load weights only.
_STATE_LOADS = RESUME_KEYWORDS | {"get_last_checkpoint", "load_checkpoint", "load_state"}


def can_resume(
    spec: JobSpec, script: ProjectScript | None, typed: Sequence[str], shell: Sequence[str] = ()
) -> bool:
    """Return True if the program, started again, seems to resume from its checkpoints.

    A placeholder or an argument makes it resume, or code that reads the checkpoint directory and
    loads from it.

    Args:
        script: None if it cannot be read.
        typed: The arguments of job and command line, with placeholders.
        shell: The texts of shell scripts that the command names.

    >>> can_resume(JobSpec(script="a.py", args=["--resume", "auto"]), None, ["--resume", "auto"])
    True
    >>> can_resume(JobSpec(script="a.py"), None, ["--lr", "1e-4"])
    False
    """
    if not (spec.script or spec.module) and spec.command is None:
        return True  # the reference trainer
    texts = [*typed, *(spec.command or ()), *set_variables(spec.env).values()]
    if spec.checkpoint.resume or any("{resume}" in text for text in texts):
        return True
    commands = [*shell, *spec.setup.commands, *texts]
    if any(name in text for text in commands for name in _VARIABLES):
        return True
    if script is not None and script.variables & {"HPCRUN_RESUME", "HPCRUN_"}:
        return True
    if any(map(_requests_resume, texts, [*texts[1:], ""])):
        return True
    gets_folder = any("{checkpoint_dir}" in text for text in texts)
    if script is None:
        return gets_folder
    if not (gets_folder or script.reads("checkpoint_dir")):
        return False
    if decide_framework(spec) in ("transformers", "lightning"):
        return bool(script.checkpoint_loads & _STATE_LOADS)
    return bool(script.checkpoint_loads)


def _requests_resume(word: str, after: str) -> bool:
    """Return True if an argument, with the argument after it, makes a program resume."""
    name, equals, value = word.partition("=")
    if not (equals or name.startswith("-")):
        return False
    if not equals:
        value = "true" if after.startswith("-") or not after else after
    return bool(_RESUME_ARGUMENT.fullmatch(name)) and value.lower() not in _DISABLED


def suggest_resume(spec: JobSpec, script: ProjectScript | None) -> str:
    """Suggest a change that makes the program resume.

    >>> suggest_resume(JobSpec(script="a.py", framework="transformers"), None)
    'trainer.train(resume_from_checkpoint=os.environ.get("HPCRUN_RESUME") or None)'
    """
    calls = {"transformers": "trainer.train(resume_from_checkpoint=", "lightning": "fit(ckpt_path="}
    options = [name for option in script.facts.options for name in option.names] if script else []
    option = next((name for name in options if _RESUME_ARGUMENT.fullmatch(name)), None)
    if option is not None:
        return f'checkpoint: {{resume: "{option} {{resume}}"}}'
    if (call := calls.get(decide_framework(spec))) is not None:
        return f'{call}os.environ.get("HPCRUN_RESUME") or None)'
    return 'checkpoint: {resume: "--resume {resume}"}, or let it read HPCRUN_RESUME'


def resume_notes(
    spec: JobSpec, script: ProjectScript | None, typed: Sequence[str], when: Sequence[str]
) -> list[str]:
    """Warn about a run that restarts automatically but begins at step 0 each time.

    >>> from hpcrun.plan.script_facts import ScriptFacts
    >>> spec, script = JobSpec(script="train.py"), ProjectScript("train.py", ScriptFacts())
    >>> len(resume_notes(spec, script, [], ["preempted"])), resume_notes(spec, script, [], [])
    (1, [])
    """
    if not when or can_resume(spec, script, typed):
        return []
    if script is not None and script.checkpoint_loads & _STATE_LOADS:
        return []  # it resumes from a folder that only the script knows
    name = script.name if script is not None else "the program"
    return [
        f"survive.when: found nothing that makes {name} resume from its checkpoints: each "
        "attempt would start at step 0 and overwrite the checkpoints of the previous one; "
        f"{suggest_resume(spec, script)}"
    ]
