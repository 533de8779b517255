"""Secrets that must not leak, and cluster output that must not take effect."""

from __future__ import annotations

import base64
import contextlib
import os
import re
import sys
import time
from pathlib import Path

import pytest

from hpcrun.remote import connection
from tests.remote.askers import askers
from tests.remote.desk import JOB, Desk

PASSPHRASE, PASSWORD, CODE = "open sesame 7391", "swordfish 4417", "902 214 55"
SECRET = "hf_Zq83kfLw0Pn2'x"


def typed(desk: Desk, answers: dict[str, str], *words: str) -> str:
    """Call hpcrun on a terminal, answer its prompts, and return everything shown."""
    process, terminal = desk.hpcrun.on_terminal(
        sys.executable, "-c", ON_TERMINAL, *words, env={"SSH_ASKPASS_REQUIRE": "never"}
    )
    shown, left = "", dict(answers)
    with contextlib.suppress(OSError):  # the terminal's end
        while data := os.read(terminal, 9999):
            shown += data.decode()
            for question in [each for each in left if each in shown.lower()]:
                time.sleep(0.1)  # getpass throws away what was typed before it asked
                os.write(terminal, f"{left.pop(question)}\n".encode())
    os.close(terminal)
    assert process.wait(60) == 0, shown
    assert not left, shown
    return shown


# The terminal is also the process's own, /dev/tty.
ON_TERMINAL = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.executable, [sys.executable, "-m", "hpcrun", *sys.argv[1:]])
"""


def leaks(folder: Path, *secrets: str) -> list[str]:
    """List the files that contain a secret, in plain text or base64."""
    found = []
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink():
            data = path.read_bytes()
            # Base64 of a text depends on its offset, of which there are three.
            data += b"".join(map(decoded, re.findall(rb"[A-Za-z0-9+/]{16,}", data)))
            if any(secret.encode() in data for secret in secrets):
                found.append(str(path.relative_to(folder)))
    return found


def decoded(word: bytes) -> bytes:
    return base64.b64decode(word + b"=" * (-len(word) % 4)) if len(word) % 4 != 1 else b""


@pytest.mark.slow
@pytest.mark.parametrize("way", ["paramiko", pytest.param("openssh", marks=pytest.mark.thorough)])
def test_passphrases_and_secrets_leave_no_traces(desk: Desk, tmp_path: Path, way: str) -> None:
    """Checks files, records, logs, --verbose output and process lists on both sides."""
    key = desk.laptop.make_key("locked", PASSPHRASE)
    (desk.server.folder / "authorized_keys").write_text(Path(f"{key}.pub").read_text())
    config = desk.laptop.ssh / "config"
    config.write_text(config.read_text().replace("/id\n", "/locked\n"))
    desk.server.stop()
    desk.server.options.append("LogLevel DEBUG3")
    desk.server.start()
    profile = desk.hpcrun.project / "hpcrun.yaml"
    profile.write_text(f"{profile.read_text()}ssh: {way}\n")
    desk.hpcrun.write("job.yaml", f"{JOB}secrets: [A_SECRET]\n")
    desk.hpcrun.environ["A_SECRET"] = SECRET
    for tool in (tmp_path / "slurm").iterdir():
        seen = "cat /proc/[0-9]*/cmdline >>~/processes 2>/dev/null; env >>~/environment"
        tool.write_text(tool.read_text().replace("bash\n", f"bash\n{seen}\n", 1))
    asked = {"passphrase": PASSPHRASE}
    shown = typed(desk, asked, "connect", "--verbose")
    if way == "openssh":
        asked = {}  # it was kept
    shown += typed(desk, asked, "submit", "job.yaml")
    for words in ("status", "show 1 --json"):
        shown += typed(desk, asked, *words.split())
    if way == "openssh":
        desk.hpcrun("connect", "--close")
    assert PASSPHRASE not in shown and SECRET not in shown
    (run,) = (desk.home / "runs").glob("2*")
    assert (run / "secrets.env").stat().st_mode & 0o777 == 0o600
    assert (desk.home / "processes").stat().st_size > 100
    left = leaks(tmp_path, PASSPHRASE, SECRET, SECRET.replace("'", "'\\''"))
    assert left == [str((run / "secrets.env").relative_to(tmp_path))]


@pytest.mark.slow
def test_passwords_and_codes_leave_no_traces(desk: Desk, tmp_path: Path) -> None:
    """The server's prompt cannot control the terminal, and each command prompts once."""
    profile = desk.hpcrun.project / "hpcrun.yaml"
    profile.write_text(profile.read_text().replace("host: far", "host: asks"))
    with askers(desk.laptop) as start:
        server = start("keyboard-interactive", [PASSWORD, CODE], "Site \x1b]0;owned\x07\x1b[2J")
        server.env["HOME"] = str(desk.home)
        asked = {"password": PASSWORD, "code": CODE}
        shown = typed(desk, asked, "connect", "--verbose")
        assert server.given == [PASSWORD, CODE] and "slurm 24.11.5" in shown
        assert "\x1b" not in shown
        shown += typed(desk, asked, "submit", "job.yaml")
        (run,) = (desk.home / "runs").glob("2*")
        desk.begin(run)
        shown += typed(desk, asked, "logs", "1") + typed(desk, asked, "status")
    assert server.given == [PASSWORD, CODE] * 4 and desk.queue() == [str(run)]
    assert "step 1 loss 2.5" in shown and "RUNNING" in shown
    # The typed code is echoed if the server requests it.
    assert PASSWORD not in shown and "Site" in shown
    assert leaks(tmp_path, PASSWORD, CODE) == []


@pytest.mark.slow
def test_cluster_output_cannot_control_the_terminal(desk: Desk) -> None:
    """Banners, refusals and command output are escaped and limited."""
    escape = r"\033]0;owned\007\033[2J\302\233"
    squeue, sbatch = (desk.home.parent / "slurm" / name for name in ("squeue", "sbatch"))
    was = squeue.read_text()
    for tool, text, words in (
        (sbatch, f"printf 'error {escape}' >&2; exit 1", ("submit", "job.yaml")),
        (squeue, f"printf 'error {escape}' >&2; exit 1", ("status", "1")),
        (squeue, f"printf 'JOBID\\n{escape}\\x1e\\n'", ("status",)),
        (sbatch, f"printf 'slurm {escape}'", ("connect",)),
        (sbatch, f"printf 'error {escape}' >&2; exit 1", ("connect",)),
    ):
        tool.write_text(f"#!/bin/bash\n{text}\n")
        done = desk.hpcrun(*words)
        assert not re.search(r"[\x07\x1b\x9b]", done.out + done.err), done
    squeue.write_text(was)
    desk.server.options.append(f"ForceCommand printf 'closed {escape}'; exit 1")
    desk.server.stop()
    desk.server.start()
    done = desk.hpcrun("submit", "job.yaml")
    assert done.code == 4 and "closed" in done.err, done
    assert not re.search(r"[\x07\x1b\x9b]", done.out + done.err), done


@pytest.mark.slow
@pytest.mark.parametrize("program", ["id", "stat", "env"])
def test_remote_programs_printing_invalid_numbers_are_harmless(desk: Desk, program: str) -> None:
    """The values are unknown, and nothing fails."""
    tool = desk.home.parent / "slurm" / program
    tool.write_text("#!/bin/bash\necho 9² ² ² ² ² x\n")
    tool.chmod(0o755)
    done = desk.hpcrun("submit", "job.yaml", "--dry-run")
    assert done.code == 0 or done.err.count("error: ") == 1, done


@pytest.mark.parametrize("code", [b"x.", b"\xb2.", b"7", b"1" * 5000])
def test_malformed_exit_code_is_handled(code: bytes) -> None:
    marked = connection._MarkedStream(b"M", None)
    marked.extract(b"M<M>" + code)
    marked.extract(b"7" * 5000)
    assert marked.is_over and marked.exit_code == 255 and len(marked.held) < 20


@pytest.mark.slow
def test_endless_reply_is_truncated(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "MOST_OUTPUT", 1 << 20)
    run = desk.submit()
    (desk.home.parent / "slurm" / "squeue").write_text("#!/bin/bash\ncat /dev/zero\n")
    done = desk.hpcrun("status", "1")
    assert done.code == 4 and "is longer than the response" in done.err, done
    desk.server.options.append("ForceCommand cat /dev/zero")
    desk.server.stop()
    desk.server.start()
    done = desk.hpcrun("logs", run.name)
    assert (
        "is longer than the response" in done.err and "what is known here is shown" in done.err
    ), done
