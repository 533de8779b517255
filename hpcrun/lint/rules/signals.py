"""Rules for signals, requeueing, exit codes and background commands."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

from hpcrun.lint.request import list_started, list_training
from hpcrun.lint.rule import Found, rule
from hpcrun.lint.script import Command, Script

SECTION = "Signals and requeueing"
_HARMLESS = {
    *("echo", "date", "printf", "exit", "true", ":", "conda", "deactivate", "hostname", "module"),
    *("ml", "pwd", "sleep", "ls", "cat", "nvidia-smi", "dcgmi", "sacct", "seff", "squeue"),
    *(
        "scontrol",
        "rm",
        "kill",
        "touch",
        "tail",
        "head",
        "df",
        "du",
        "free",
        "which",
        "set",
        "unset",
    ),
    *("wait", "sstat", "uptime", "end", "mail", "curl", "cd", "popd"),
}


def _signal(script: Script) -> tuple[str, str, int] | None:
    """Return the target ("B" or ""), the name and the place of --signal."""
    one = script.option("signal")
    if one is None:
        return None
    found = re.fullmatch(r"(?:([RB]+):)?(?:SIG)?(\w+?)(?:@(\d+))?", one.value)
    if found is None:
        return None
    numbers = {"10": "USR1", "12": "USR2", "15": "TERM", "2": "INT", "1": "HUP"}
    return (found[1] or ""), numbers.get(found[2], found[2].upper()), one.start


def _traps(script: Script) -> list[tuple[Command, set[str], str]]:
    """Return the trap commands with the names of their signals and their handlers."""
    found = []
    for command in script.commands:
        if (
            command.name == "trap"
            and len(command.args) > 1
            and command.args[0] not in ("-", "", "-p")
        ):
            numbers = {
                "10": "USR1",
                "12": "USR2",
                "15": "TERM",
                "2": "INT",
                "1": "HUP",
                "0": "EXIT",
            }
            names = {word.upper().removeprefix("SIG") for word in command.args[1:]}
            found.append((command, {numbers.get(one, one) for one in names}, command.args[0]))
    return found


@rule(
    "signal-not-for-script",
    "error",
    "a trap for a signal that is not sent to the script",
    section=SECTION,
    source="sbatch(1), --signal: only the steps get the signal, unless it begins with B:",
    fix="--signal=B:USR1@300",
    bad="#SBATCH --signal=USR1@300\ntrap 'touch stop' USR1\nsrun python t.py &\nwait\n",
    good="#SBATCH --signal=B:USR1@300\ntrap 'touch stop' USR1\nsrun python t.py &\nwait\n",
)
def _(script: Script) -> Iterator[Found]:
    signal = _signal(script)
    if signal is None or "B" in signal[0]:
        return
    for command, names, _handler in _traps(script):
        if signal[1] in names and not command.function:
            text = f"the script does not get {signal[1]}: it is sent to the steps only"
            yield Found(signal[2], text)
            return


@rule(
    "signal-without-trap",
    "warning",
    "a signal for the script, which has no trap for it",
    section=SECTION,
    source="bash(1): a signal without a trap ends the script, and Slurm then ends the steps",
    fix="trap 'kill -USR1 $PID' USR1, the program in the background, then wait",
    bad="#SBATCH --signal=B:USR1@300\nsrun python t.py\n",
    good="#SBATCH --signal=B:USR1@300\nexec python t.py\n",
)
def _(script: Script) -> Iterator[Found]:
    signal = _signal(script)
    if signal is None or "B" not in signal[0]:
        return
    traps = [name for _, names, _ in _traps(script) for name in names]
    sourced = any(
        one.name in ("source", ".") and not any("activate" in word for word in one.args)
        for one in script.commands
    )
    if signal[1] in traps or sourced or any(one.name == "exec" for one in script.commands):
        return
    if "trap" in script.text or "requeue_job" in script.text:
        return
    yield Found(signal[2], f"{signal[1]} ends the script, and with it the job")


@rule(
    "signal-reaches-nothing",
    "warning",
    "a signal for the steps of a job that has none",
    section=SECTION,
    source="sbatch(1), --signal: without B: only steps (srun) get it, not the script",
    fix="start the program with srun, or use --signal=B: and a trap",
    bad="#SBATCH --signal=USR1@90\npython train.py\n",
    good="#SBATCH --signal=USR1@90\nsrun python train.py\n",
)
def _(script: Script) -> Iterator[Found]:
    signal = _signal(script)
    training = list_training(script)
    if signal is None or "B" in signal[0] or not training:
        return
    known = {"python", "torchrun", "accelerate", "deepspeed"}
    if "srun" not in script.text and all(one.kind in known for one in training):
        yield Found(signal[2], "nothing gets the signal: the program is not started by srun")


@rule(
    "signal-kills-launcher",
    "warning",
    "USR1 or USR2 for the steps, in which a launcher runs",
    section=SECTION,
    source="torchrun handles TERM, INT, HUP and QUIT only: USR1 and USR2 end it",
    fix="handle the signal in the script, and pass it to the ranks themselves",
    bad="#SBATCH --signal=USR1@90\nsrun torchrun --nproc_per_node=4 train.py\n",
    good="#SBATCH --signal=USR1@90\nsrun python train.py\n",
)
def _(script: Script) -> Iterator[Found]:
    signal = _signal(script)
    if signal is None or "B" in signal[0] or signal[1] not in ("USR1", "USR2"):
        return
    for program in list_training(script):
        if program.step is not None and program.kind in ("torchrun", "accelerate", "deepspeed"):
            yield Found(signal[2], f"{signal[1]} ends {program.kind} before the ranks can save")
            return


@rule(
    "trap-waits",
    "warning",
    "a trap that bash runs only after the foreground command has ended",
    section=SECTION,
    source="bash(1), SIGNALS: traps run when the foreground command completes",
    fix="start the command with & and wait for it: srun ... & wait $!",
    bad="#SBATCH --signal=B:USR1@300\ntrap 'touch stop' USR1\nsrun python train.py\n",
    good="#SBATCH --signal=B:USR1@300\ntrap 'touch stop' USR1\nsrun python train.py &\nwait $!\n",
)
def _(script: Script) -> Iterator[Found]:
    training = list_training(script)
    for command, names, _handler in _traps(script):
        caught = names & {"USR1", "USR2", "TERM", "CONT"}
        if not caught or command.branch or not training:
            continue
        after = [one for one in training if one.command.start > command.start]
        if (
            after
            and not any(one.command.background for one in after)
            and not any(one.name == "wait" for one in script.commands)
        ):
            text = f"the trap for {sorted(caught)[0]} runs only after the program has ended"
            yield Found(command.start, text)
            return


@rule(
    "requeue-truncates-log",
    "warning",
    "a job that is requeued, without --open-mode=append",
    section=SECTION,
    source="slurm.conf(5), JobFileAppend=0: a restart truncates the output file",
    fix="#SBATCH --open-mode=append",
    bad="#SBATCH --requeue\n#SBATCH --output=%j.out\n",
    good="#SBATCH --requeue\n#SBATCH --output=%j.out\n#SBATCH --open-mode=append\n",
)
def _(script: Script) -> Iterator[Found]:
    one = script.option("requeue")
    if one is None or script.value("open-mode") == "append":
        return
    last = [each for each in script.directives if each.option in ("requeue", "no-requeue")][-1]
    if last.option == "requeue":
        yield Found(one.start, "a restart truncates the output of the attempts before")


@rule(
    "requeue-on-any-failure",
    "warning",
    "a job that is restarted after any failure",
    section=SECTION,
    source="a typing error then fails again and again, until the budget is used up",
    fix="restart after the time limit or preemption only, and count the attempts",
    bad="#SBATCH -N 1\npython train.py || scontrol requeue $SLURM_JOB_ID\n",
    good="#SBATCH -N 1\npython train.py\n",
)
def _(script: Script) -> Iterator[Found]:
    for command in script.commands:
        if command.depends != "||" or command.function:
            continue
        again = command.name == "scontrol" and command.args[:1] == ["requeue"]
        again = again or command.name == "sbatch"
        if again:
            yield Found(command.start, "it restarts after any failure, also after a typing error")
            return


@rule(
    "requeue-not-allowed",
    "note",
    "scontrol requeue in a job without --requeue",
    section=SECTION,
    source="slurm.conf(5): JobRequeue=0 or --no-requeue refuses it",
    fix="#SBATCH --requeue",
    bad="#SBATCH -N 1\ntrap 'scontrol requeue $SLURM_JOB_ID' USR1\n",
    good="#SBATCH -N 1\n#SBATCH --requeue\ntrap 'scontrol requeue $SLURM_JOB_ID' USR1\n",
)
def _(script: Script) -> Iterator[Found]:
    if script.has("requeue") or not script.directives:
        return
    for command in script.commands:
        text = " ".join(command.args)
        inside = command.name == "trap" and "scontrol requeue" in text
        if inside or (command.name == "scontrol" and command.args[:1] == ["requeue"]):
            yield Found(command.start, "the site may refuse it without #SBATCH --requeue")
            return


@rule(
    "restart-count-unset",
    "note",
    "$SLURM_RESTART_COUNT without a default",
    section=SECTION,
    source="sbatch(1): it is set only after a restart",
    fix="${SLURM_RESTART_COUNT:-0}",
    bad="#SBATCH --requeue\npython t.py --attempt $SLURM_RESTART_COUNT\n",
    good="#SBATCH --requeue\npython t.py --attempt ${SLURM_RESTART_COUNT:-0}\n",
)
def _(script: Script) -> Iterator[Found]:
    uses = [
        one
        for one in script.uses_of("SLURM_RESTART_COUNT")
        if not any(
            each.name in ("echo", "printf") and each.start <= one.start < each.end
            for each in script.commands
        )
    ]
    if (
        uses
        and not any(one.default for one in uses)
        and not re.search(r"""["']?\$\{?SLURM_RESTART_COUNT\}?["']?\s*(!=|==?)""", script.text)
    ):
        yield Found(uses[0].start, "it is empty in the first attempt")


@rule(
    "exit-code-lost",
    "warning",
    "a failed program is reported as COMPLETED",
    section="Exit codes",
    source="sbatch(1): the job's exit code is that of the script, i.e. of its last command",
    fix="set -e at the top, or exit $? after the program",
    bad='#SBATCH -N 1\npython train.py\necho "done"\n',
    good='#SBATCH -N 1\nset -e\npython train.py\necho "done"\n',
)
def _(script: Script) -> Iterator[Found]:
    if not script.directives or _exits_on_error(script):
        return
    training = [one for one in list_training(script) if not one.command.function]
    if not training:
        return
    last = max(training, key=lambda one: one.command.end)
    if last.command.guarded or last.command.background:
        return
    after = [
        one
        for one in script.commands
        if one.start >= last.command.end and not one.substituted and not one.function
    ]
    after = [one for one in after if one.name and one.name not in last.command.pipes_into]
    if not after or after[0].depends == "&&":
        return
    if last.command.branch and after[-1].branch:
        return  # perhaps the other branch of an if
    # A failure that the script notices is lost, too, if it does not end with it.
    if any(one.name == "exit" and one.args not in ([], ["0"]) for one in after):
        return
    if "$?" in script.text and re.search(r"=\"?\$\?|\b(return|kill|false|scancel)\b", script.text):
        return
    if all(one.name in _HARMLESS or _deactivates(one) for one in after):
        line = script.describe_line(after[-1].start, last.command.start)
        text = f"if it fails, the job is COMPLETED: {after[-1].name} in {line} succeeds"
        yield Found(last.command.start, text)


@rule(
    "earlier-failure-lost",
    "note",
    "several programs, of which only the last one decides the state of the job, also in a loop",
    section="Exit codes",
    source="bash(1): without set -e, the script continues after a command that fails",
    fix="set -e at the top",
    bad="#SBATCH -N 1\nsrun python train.py\nsrun python eval.py\n",
    good="#SBATCH -N 1\nset -e\nsrun python train.py\nsrun python eval.py\n",
)
def _(script: Script) -> Iterator[Found]:
    if not script.directives or _exits_on_error(script) or "$?" in script.text:
        return
    started = [one.command for one in list_started(script)]
    if any(one.function or one.background for one in started):
        return
    commands = [one for one in started if not one.guarded and not one.pipes_into]
    for command in commands:
        after = script.data[command.end :].lstrip(b" \t")
        if _is_in_loop(script, command.start) and not after.startswith((b"||", b"&&")):
            yield Found(
                command.start,
                "if it fails, the loop continues, and its failure is lost",
            )
            return
    for first, second in itertools.pairwise(commands):
        if second.branch:
            continue  # perhaps the other branch of an if
        if second.start >= first.end and second.depends != "&&":
            line = script.describe_line(second.start, first.start)
            text = f"if it fails, the program in {line} runs, and decides the job's state"
            yield Found(first.start, text)
            return


@rule(
    "pipe-hides-failure",
    "warning",
    "a pipe that hides the failure of the program",
    section="Exit codes",
    source="bash(1): the exit code of a pipeline is that of its last command, without pipefail",
    fix="set -o pipefail",
    bad="#SBATCH -N 1\npython train.py 2>&1 | tee log.txt\n",
    good="#SBATCH -N 1\nset -o pipefail\npython train.py 2>&1 | tee log.txt\n",
)
def _(script: Script) -> Iterator[Found]:
    if not script.directives or re.search(r"\bpipefail\b|PIPESTATUS", script.text):
        return
    for program in list_training(script):
        if program.command.pipes_into and not program.command.guarded:
            name = program.command.pipes_into[-1]
            text = f"if the program fails, the exit code is that of {name}, 0"
            yield Found(program.command.start, text)
            return


@rule(
    "wait-hides-failure",
    "warning",
    "`wait` without a process id",
    section="Exit codes",
    source="bash(1): wait without arguments returns 0, whatever failed",
    fix="wait $PID for each command, and keep its exit code",
    bad="#SBATCH -N 1\npython train.py &\nwait\n",
    good="#SBATCH -N 1\npython train.py &\nwait $!\n",
)
def _(script: Script) -> Iterator[Found]:
    if not script.directives:
        return
    started = [one for one in list_started(script) if one.command.background]
    waits = [one for one in script.commands if one.name == "wait" and not one.function]
    if started and waits and all(not one.args for one in waits):
        yield Found(
            waits[-1].start, "wait returns 0 even if the program failed: the job is COMPLETED"
        )


@rule(
    "background-killed",
    "error",
    "a program in the background for which the script does not wait",
    section="Exit codes",
    source="sbatch(1): the job ends with the script; Slurm then kills all its processes",
    fix="remove the &, or add wait",
    bad="#SBATCH -N 1\npython train.py &\n",
    good="#SBATCH -N 1\npython train.py &\nwait\n",
)
def _(script: Script) -> Iterator[Found]:
    if not script.directives:
        return
    training = list_training(script)
    if any(one.name in ("wait", "sleep", "tail", "while") for one in script.commands):
        return
    if training and training[-1].command.background and not training[-1].command.function:
        last = training[-1].command
        after = [one for one in script.commands if one.start > last.end and not one.substituted]
        if all(one.name in _HARMLESS for one in after) and not re.search(
            r"(?m)^\s*(while|until)\b", script.text
        ):
            yield Found(last.start, "the job ends at once, and Slurm kills the program")
            return


@rule(
    "background-cut-short",
    "warning",
    "a program in the background that ends when the last one in the foreground does",
    section="Exit codes",
    source="sbatch(1): the job ends with the script; Slurm then kills all its processes",
    fix="wait for each program at the end",
    bad="#SBATCH -N 1\npython a.py --lr 1 &\npython a.py --lr 2\n",
    good="#SBATCH -N 1\npython a.py --lr 1 &\npython a.py --lr 2\nwait\n",
)
def _(script: Script) -> Iterator[Found]:
    if not script.directives or any(one.name == "wait" for one in script.commands):
        return
    training = [one for one in list_training(script) if not one.command.function]
    if not training or training[-1].command.background:
        return
    servers = r"server|serve|monitor|visdom|tensorboard|http|watch|profil"
    last = training[-1]
    for one in training[:-1]:
        if not one.command.background or re.search(servers, " ".join(one.args)):
            continue
        if one.kind == last.kind and one.args[:1] == last.args[:1]:
            line = script.describe_line(last.command.start, one.command.start)
            yield Found(one.command.start, f"Slurm kills it when the program in {line} ends")
            return


@rule(
    "sudden-end",
    "note",
    "a long job that saves nothing at its time limit",
    section=SECTION,
    source="slurm.conf(5), KillWait: 30 s after TERM the processes are killed",
    fix="save checkpoints regularly, and use --signal to save before the end",
    bad="#SBATCH --time=3-00:00:00\n#SBATCH --requeue\npython train.py\n",
    good="#SBATCH --time=3-00:00:00\n#SBATCH --requeue\n#SBATCH --signal=USR1@300\n"
    "srun python train.py\n",
)
def _(script: Script) -> Iterator[Found]:
    one = script.option("requeue")
    if one is None or script.has("signal") or _traps(script) or not list_training(script):
        return
    text = "a restart repeats everything since the last checkpoint: no --signal announces the end"
    yield Found(one.start, text)


@rule(
    "failure-ignored",
    "warning",
    "a failure of the program that the script ignores",
    section="Exit codes",
    source="sbatch(1): the job's exit code is that of the script, i.e. of its last command",
    fix="remove || true",
    bad="#SBATCH -N 1\npython train.py || true\n",
    good="#SBATCH -N 1\npython train.py || exit 1\n",
)
def _(script: Script) -> Iterator[Found]:
    if not script.directives or "$?" in script.text:
        return
    training = [one for one in list_training(script) if one.command.guarded]
    for program in training:
        after = script.data[program.command.end :].lstrip(b" \t\\\n")
        found = re.match(rb"\|\|\s*(true|:|echo)\b", after)
        if found and not re.match(rb"[^\n]*\b(exit|return|false|scontrol)\b", after):
            yield Found(program.command.start, "if it fails, the job is COMPLETED all the same")
            return


@rule(
    "wait-never-ends",
    "warning",
    "`wait` with a process in the background that never ends",
    section="Exit codes",
    source="bash(1): wait without arguments waits for all processes in the background",
    fix="wait $PID of the program, then kill the other process",
    bad="#SBATCH -N 1\nnvidia-smi -l 5 > gpu.log &\npython train.py &\nwait\n",
    good="#SBATCH -N 1\nnvidia-smi -l 5 > gpu.log &\npython train.py\n",
)
def _(script: Script) -> Iterator[Found]:
    waits = [one for one in script.commands if one.name == "wait" and not one.function]
    if not waits or any(one.args for one in waits) or not script.directives:
        return
    if any(one.name in ("kill", "pkill", "timeout") for one in script.commands):
        return
    for command in script.commands:
        words = " ".join(command.args)
        endless = command.name in ("watch", "tensorboard", "jupyter", "ollama", "htop")
        endless = endless or (
            command.name == "nvidia-smi"
            and bool(re.search(r"(^| )(-l\b|--loop|dmon|pmon|-lms)", words))
        )
        endless = endless or (command.name == "tail" and bool(re.search(r"(^| )-\w*f", words)))
        if command.background and endless and command.start < waits[-1].start:
            text = f"{command.name} never ends, so the job runs until its time limit"
            yield Found(waits[-1].start, text)
            return


@rule(
    "resubmits-itself",
    "warning",
    "a script that submits itself again without a limit",
    section=SECTION,
    source="sbatch(1): each submission is a new job; if each fails at once, they never end",
    fix="--requeue, or count the submissions and stop",
    bad="#SBATCH --job-name=a\npython train.py\nsbatch train.sbatch\n",
    good="#SBATCH --job-name=a\n#SBATCH --requeue\npython train.py\n",
)
def _(script: Script) -> Iterator[Found]:
    if not script.directives or not list_training(script):
        return
    name = script.name.rpartition("/")[2]
    for command in script.commands:
        if command.name != "sbatch" or command.branch or command.depends or command.function:
            continue
        words = [word for word in command.args if not word.startswith("-")]
        if words and (words[-1].rpartition("/")[2] == name or "0" in command.words[-1].unknown):
            yield Found(command.start, "the job submits itself again, also after a failure")
            return
        if name in ("script", "-", "stdin") and words and len(words) == 1:
            yield Found(command.start, f"the job submits {words[0]} also after a failure")
            return


def _is_in_loop(script: Script, at: int) -> bool:
    """Return True if a byte is in the body of a loop."""
    node = script.tree.root_node.descendant_for_byte_range(at, at)
    while node is not None:
        if node.type in ("for_statement", "while_statement", "c_style_for_statement"):
            return True
        node = node.parent
    return False


@rule(
    "cancels-itself",
    "note",
    "a script that cancels its own job",
    section="Exit codes",
    source="scancel(1): the state of the job becomes CANCELLED, and the script gets SIGTERM",
    fix="exit",
    bad="#SBATCH -N 1\npython train.py\nscancel $SLURM_JOB_ID\n",
    good="#SBATCH -N 1\npython train.py\nexit\n",
)
def _(script: Script) -> Iterator[Found]:
    for command in script.commands:
        own = {"SLURM_JOB_ID", "SLURM_JOBID"}
        if command.name == "scancel" and own & set(command.words[-1].unknown):
            yield Found(command.start, "the job ends as CANCELLED, whatever the program did")
            return


def _exits_on_error(script: Script) -> bool:
    """Return True for a script with ``set -e``."""
    if re.search(r"^#!.*\s-\w*e", script.shebang):
        return True
    for command in script.commands:
        if command.name == "set":
            if any(re.fullmatch(r"-[a-z]*e[a-z]*", word) for word in command.args):
                return True
            if "errexit" in command.args:
                return True
    return False


def _deactivates(command: Command) -> bool:
    return command.name in ("source", ".") and command.args[:1] == ["deactivate"]
