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


def mark_of(words: List[str]) -> None:
    """CHECKPOINT: print a fingerprint that changes if the checkpoint is overwritten."""
    from hpcrun.jobside.checkpoints import mark_of as mark

    _say(mark(words[0]))


def end(words: List[str]) -> None:
    """CODE STATE PREEMPTED TOLD MARK PHASE SECONDS: print the decisions at the end of an attempt.

    One line each: why it ended, its newest complete checkpoint, whether the run continues ("yes", a
    reason against it, or nothing), and the delay in seconds.
    """
    from hpcrun.jobside import ends
    from hpcrun.jobside.checkpoints import newest_checkpoint as find_newest

    code, state, preempted, told, mark, phase, seconds = words
    why = ends.classify_end(
        state, preempted=bool(preempted), told=told, mark=mark, exit_code=int(code), phase=phase
    )
    newest = _newest(find_newest)
    decision = ends.decide(os.environ, why, newest, float(seconds))
    for each in (why, newest, decision.note, decision.pause):
        _say(str(each))


def continuation(words: List[str]) -> None:
    """STATE-OR-WHY: print whether the run continues after an attempt whose script is gone."""
    from hpcrun.jobside import ends
    from hpcrun.jobside.checkpoints import newest_checkpoint as find_newest

    why = ends.classify_end(words[0], exit_code=1) if words[0][:1].isupper() else words[0]
    _say(ends.decide(os.environ, why, _newest(find_newest), 0.0).note)


def _newest(find: Callable[[str, int, str], str]) -> str:
    world = int(os.environ.get("HPCRUN_WORLD_SIZE") or 1)
    marker = os.environ.get("HPCRUN_CHECKPOINT_MARKER", "")
    return find(os.environ.get("HPCRUN_CHECKPOINT_DIR", ""), world, marker)


def watch(words: List[str]) -> None:
    """Run the watcher of the attempt until stdin ends."""
    from hpcrun.jobside.watcher import watch as run

    run(os.environ, _say, _complain)


COMMANDS: Dict[str, Callable[[List[str]], None]] = {
    each.__name__: each
    for each in (
        *(answer, newest_checkpoint, judge_checkpoints, prune_checkpoints, save_room, mark_of),
        *(end, continuation, watch),
    )
}


def main() -> None:
    """Run the command that is named by the first argument."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    COMMANDS[sys.argv[1]](sys.argv[2:])


if __name__ == "__main__":
    main()
