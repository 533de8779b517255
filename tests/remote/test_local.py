"""The local transport: results and errors."""

from __future__ import annotations

import errno
import gc
import subprocess
import warnings
from pathlib import Path
from typing import NoReturn

import pytest

from hpcrun.errors import HpcrunError, OutOfReach
from hpcrun.remote import Result, Transport
from hpcrun.remote.local import LocalTransport
from tests.remote.scripted import ScriptedTransport

ENV = {"PATH": "/usr/bin:/bin", "NAME": "value"}


def test_local_command_returns_all_output(tmp_path: Path) -> None:
    script = 'echo "$NAME $PWD"; echo wrong >&2; cat; exit 3'
    result = LocalTransport(ENV).run(["sh", "-c", script], cwd=str(tmp_path))
    assert result == Result(["sh", "-c", script], 3, f"value {tmp_path}\n", "wrong\n")


def test_folders_are_removed_from_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Removal must not create files, because a reached quota is the reason for it."""
    runs = [tmp_path / name for name in ("one", "two", "gone")]
    for run in runs[:2]:
        (run / "logs").mkdir(parents=True)

    def full(self: Path, *_: object, **__: object) -> NoReturn:
        raise OSError(errno.EDQUOT, "Disk quota exceeded", str(self))

    monkeypatch.setattr(Path, "mkdir", full)
    LocalTransport(ENV).remove_directories(runs)
    assert list(tmp_path.iterdir()) == []


def test_given_environment_replaces_that_of_the_transport() -> None:
    transport = LocalTransport(ENV)
    given = {"PATH": ENV["PATH"], "OTHER": "\udcff"}
    result = transport.run(["sh", "-c", 'printf %s "${NAME-unset}$OTHER"'], env=given)
    assert result.stdout == "unset\udcff"


def test_arguments_are_not_interpreted_by_a_shell() -> None:
    result = LocalTransport(ENV).run(["printf", "%s|", "a b", "$(id)", "'"])
    assert result.stdout == "a b|$(id)|'|"


def test_missing_command_is_reported() -> None:
    with pytest.raises(OutOfReach) as caught:
        LocalTransport(ENV).run(["no-such-command"])
    assert caught.value.message == "no-such-command: command not found"
    assert not caught.value.maybe_done
    assert "hpcrun sandbox up" in caught.value.fix


@pytest.mark.parametrize(
    ("number", "fix"), [(errno.EAGAIN, "ulimit -u"), (errno.ENOMEM, "ulimit -v"), (errno.EPERM, "")]
)
def test_process_limit_is_reported(number: int, fix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*args: object, **options: object) -> NoReturn:
        raise OSError(number, "not now")

    monkeypatch.setattr(subprocess, "Popen", refused)
    with pytest.raises(OutOfReach, match=r"^squeue cannot be started: not now") as caught:
        LocalTransport(ENV).run(["squeue", "--me"])
    assert fix in caught.value.fix and not caught.value.maybe_done


def test_missing_working_folder_is_reported() -> None:
    with pytest.raises(HpcrunError, match="/no/such/folder: no such folder"):
        LocalTransport(ENV).run(["true"], cwd="/no/such/folder")


def test_streams_of_an_ended_command_are_closed_at_its_timeout() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ResourceWarning)
        with pytest.raises(OutOfReach, match="sh did not respond"):
            LocalTransport(ENV).run(["sh", "-c", "sleep 2 & exit 0"], timeout=0.5)
        gc.collect()
    assert not [str(each.message) for each in caught]


def test_command_timeout_is_reported() -> None:
    with pytest.raises(OutOfReach, match="sleep did not respond") as caught:
        LocalTransport(ENV).run(["sleep", "60"], timeout=0.1)
    assert caught.value.maybe_done


def test_local_folders_are_submitted_in_place(tmp_path: Path) -> None:
    transport: Transport = LocalTransport(ENV)
    first, second = tmp_path / "one", tmp_path / "two"
    for folder in (first, second):
        folder.mkdir()
    script = 'echo "$PWD $NAME"'
    done = transport.submit_directories(
        [first, second], ["sh", "-c", script], env={**ENV, "NAME": "other"}
    )
    assert done.stdout == f"{first} other\n"
    unlisted = iter([first, second])
    transport.fetch_changes(unlisted)
    assert [*unlisted] == [first, second]
    (first / "locked").mkdir()
    (first / "locked" / "file").touch()
    (first / "locked").chmod(0o500)
    (second / "link").symlink_to(ENV["PATH"])
    transport.remove_directories([first, second, tmp_path / "gone before"])
    assert list(tmp_path.iterdir()) == []


def test_scripted_reply_may_be_a_function_or_an_error() -> None:
    transport = ScriptedTransport(
        {
            "fixed": (1, "out", "err"),
            "asked": lambda argv: Result(list(argv), 0, argv[-1], ""),
            "dead": OutOfReach("no answer"),
        }
    )
    assert transport.run(["fixed", "x"]) == Result(["fixed", "x"], 1, "out", "err")
    assert transport.run(["asked", "y"]).stdout == "y"
    with pytest.raises(OutOfReach):
        transport.run(["dead"])
    with pytest.raises(KeyError):
        transport.run(["unheard-of"])
    assert [argv[0] for argv in transport.asked] == ["fixed", "asked", "dead", "unheard-of"]
