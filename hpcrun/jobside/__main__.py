"""The commands for the job's bash scripts: ``python3 -I -S jobside.pyz COMMAND ...``."""

import os
import signal
import sys
from typing import Any, Callable, Dict, List


def _say(line: str) -> None:
    _write(sys.stdout, line)


def _complain(line: str) -> None:
    _write(sys.stderr, line)


def _write(stream: Any, text: str) -> None:
    # Paths are bytes, which Python 3.6 in the C locale would refuse to print.
    stream.buffer.write(os.fsencode(text + "\n"))
    stream.buffer.flush()


def answer(words: List[str]) -> None:
    """Prove that this Python can run the archive."""


def next_attempt(words: List[str]) -> None:
    """JOB BEFORE KNOWN: print the number of the attempt that starts now.

    If the run is over or belongs to another job, print nothing and exit with the job's code.
    """
    from hpcrun.jobside.successors import next_attempt as find

    job, before, known = words
    claim = find(os.environ, job, before, int(known) if known else None, _complain)
    if claim.attempt is not None:
        _say(str(claim.attempt))
    sys.exit(claim.code)


def distrust_rebooted_node(words: List[str]) -> None:
    """ATTEMPT: fail if the node of its script has rebooted, and the run is there again."""
    from hpcrun.jobside.slurm import Job
    from hpcrun.jobside.successors import distrust_rebooted_node as distrust

    sys.exit(1 if distrust(Job(os.environ, _say), int(words[0])) else 0)


def choose_nodes(words: List[str]) -> None:
    """COUNT: print as many of the job's nodes as the ranks need, healthy ones first."""
    from hpcrun.jobside.slurm import Job
    from hpcrun.jobside.successors import choose_nodes as choose

    _say(",".join(choose(Job(os.environ, _complain), int(words[0]))))


def prepare_launch(words: List[str]) -> None:
    """Record where the ranks resume, and print that and for how long they may save at an end.

    Each value ends with a NUL; it is empty if unknown.
    """
    from hpcrun.jobside.launch import prepare

    sys.stdout.buffer.write(b"".join(os.fsencode(each) + b"\0" for each in prepare(os.environ)))
    sys.stdout.buffer.flush()


def time_left(words: List[str]) -> None:
    """Print the reason of Slurm's warning, and the seconds until it ends the job."""
    from hpcrun.jobside.launch import time_left as find

    reason, seconds = find(os.environ)
    _say("{} {}".format(reason, seconds))


def replace_host(words: List[str]) -> None:
    """HOST: make Slurm restart the job if it has lost HOST, which ran its script; fail if not."""
    from hpcrun.jobside.slurm import Job
    from hpcrun.jobside.successors import replace_host as replace

    def append(line: str) -> None:
        path = os.path.join(os.environ["HPCRUN_RUN_DIR"], "logs", "batch.log")
        with open(path, "ab") as file:
            file.write(os.fsencode(line + "\n"))

    sys.exit(0 if replace(Job(os.environ, append), words[0]) else 1)


def newest_checkpoint(words: List[str]) -> None:
    """DIR WORLD_SIZE: print the path of the newest complete checkpoint, if any."""
    from hpcrun.jobside.checkpoints import newest_checkpoint as newest

    marker = os.environ.get("HPCRUN_CHECKPOINT_MARKER", "")
    found = newest(words[0], int(words[1]), marker, _complain)
    if found:
        _say(found)


def judge_checkpoints(words: List[str]) -> None:
    """DIR WORLD_SIZE [first]: print the state, path and reason of each checkpoint."""
    from hpcrun.jobside.checkpoints import absolute, judge

    for verdict in judge(words[0], int(words[1]), os.environ.get("HPCRUN_CHECKPOINT_MARKER", "")):
        _say("\t".join((verdict.state, absolute(words[0], verdict.unit), verdict.reason)))
        if words[2:] == ["first"] and verdict.state == "whole":
            break


def prune_checkpoints(words: List[str]) -> None:
    """Remove complete checkpoints that newer ones replace."""
    from hpcrun.jobside.watcher import prune_checkpoints as prune

    prune(os.environ, _say)


def save_room(words: List[str]) -> None:
    """DIR BYTES: warn if the disk may lack space for another checkpoint of this size."""
    from hpcrun.jobside.checkpoints import warn_of_room

    warn_of_room(words[0], int(words[1]), _complain)


def judge_gpus(words: List[str]) -> None:
    """Print "bad: WHY", or warnings and "gpus: ...", by the facts of a node on stdin."""
    from hpcrun.jobside.gpus import judge_gpus as judge
    from hpcrun.jobside.gpus import parse_facts

    found = judge(parse_facts(sys.stdin.buffer.read().decode("utf-8", "surrogateescape")))
    for warning in found.warnings:
        _say(warning)
    if found.bad:
        _say("bad: " + found.bad)
    elif found.gpus:
        _say("gpus: " + ";".join(found.gpus))


def compare_nodes(words: List[str]) -> None:
    """ADDRESS PORT COUNT: compare the job's nodes with this one, whose ports are on stdin.

    Prints the warnings about this node.
    """
    from hpcrun.jobside.nodes import compare_nodes as compare

    ports = sys.stdin.buffer.readline().decode("ascii", "replace").rstrip("\n")
    for warning in compare(words[0], int(words[1]), int(words[2]), ports):
        _say(warning)


def launch_hosts(words: List[str]) -> None:
    """ssh|pdsh PYTHON HOST...: run the ranks on the hosts of a hostfile; exit with their code."""
    from hpcrun.jobside.hosts import HostsLauncher

    way, python, *hosts = words
    sys.exit(HostsLauncher(os.environ, way, python, hosts, _say, _complain).launch())


def end(words: List[str]) -> None:
    """CODE BEGUN STOPPED OVERDUE: end the attempt, and start the next one if the run continues.

    Prints to descriptor 3 the exit code of the batch script and, if it starts the ranks again in
    this job, "relaunch".
    """
    from hpcrun.jobside.finish import Finish

    code, begun, stopped, overdue = words
    finish = Finish(
        os.environ,
        _say,
        _complain,
        begun=float(begun),
        stopped=stopped,
        is_overdue=bool(overdue),
    )
    outcome = finish.run(int(code))
    os.write(3, "{} {}\n".format(outcome.code, outcome.next or "").encode())
    _say("hpcrun: attempt {} ended with exit code {}".format(finish.job.attempt, outcome.code))
    if os.environ.get("HPCRUN_CHECKPOINT_KEEP"):
        prune_checkpoints([])
    if os.path.exists(os.path.join(os.environ["HPCRUN_RUN_DIR"], "search.json")):
        from hpcrun.jobside.search import record_end

        record_end(os.environ)
    if os.path.exists(os.path.join(os.environ["HPCRUN_RUN_DIR"], "notify.json")):
        from hpcrun.jobside.notifier import JobNotifier

        JobNotifier(os.environ, _complain).send_end(outcome.next)
    if os.path.exists(os.path.join(os.environ["HPCRUN_RUN_DIR"], "evaluations.json")):
        from hpcrun.jobside.evaluations import EvaluationWatch

        # A time limit or a preemption ends the training, and not its evaluations.
        if outcome.next is None:
            EvaluationWatch(os.environ, _complain).check(has_ended=True)


def submit_evaluations(words: List[str]) -> None:
    """PATIENCE DIR WORLD_SIZE MARKER: submit evaluations of the run; print the outcomes as JSON."""
    from hpcrun.jobside.evaluations import submit_for_watcher

    _say(submit_for_watcher(os.environ, words))


def prepare_trial(words: List[str]) -> None:
    """Print bash commands that export the values of this trial of a search; fail without any."""
    import shlex

    from hpcrun.jobside.search import prepare_trial as prepare

    values = prepare(os.environ, _complain)
    if not values:
        sys.exit(1)
    for name, value in sorted(values.items()):
        _say("export HPCRUN_TRIAL_{}={}".format(name, shlex.quote(value)))


def sample_trial(words: List[str]) -> None:
    """Print the values that optuna draws for this trial, as JSON."""
    from hpcrun.jobside.sampler import sample_trial as sample

    _say(sample(os.environ))


def ray_node(words: List[str]) -> None:
    """PROGRAM...: run Ray on this node, and on the first one the program; exit with its code."""
    from hpcrun.jobside.ray_node import run_node

    sys.exit(run_node(os.environ, words, _say, _complain))


def run_roles(words: List[str]) -> None:
    """Run the programs of a job with roles; exit with the code of the main one."""
    from hpcrun.jobside.roles import run_roles as run

    sys.exit(run(os.environ, _say, _complain))


def watch(words: List[str]) -> None:
    """BEFORE: watch the attempt until stdin ends; BEFORE is the job that had the run."""
    from hpcrun.jobside.watcher import watch as run

    run(os.environ, words[0] if words else "", _say, _complain)


COMMANDS: Dict[str, Callable[[List[str]], None]] = {
    each.__name__: each
    for each in (
        *(answer, next_attempt, distrust_rebooted_node, choose_nodes, prepare_launch, time_left),
        *(replace_host, newest_checkpoint, judge_checkpoints, prune_checkpoints, save_room),
        *(judge_gpus, compare_nodes, launch_hosts, end, submit_evaluations, prepare_trial),
        *(sample_trial, ray_node, run_roles, watch),
    )
}


def main() -> None:
    """Run the command that is named by the first argument."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    COMMANDS[sys.argv[1]](sys.argv[2:])


if __name__ == "__main__":
    main()
