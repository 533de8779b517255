"""Run output is fetched from the transfer host."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from hpcrun.errors import InputError, OutOfReach
from hpcrun.remote import ssh
from hpcrun.remote.connection import Reply
from hpcrun.remote.ssh import build_ssh_connect
from hpcrun.spec.job import Cluster
from tests.remote.sshd import servers


@pytest.mark.slow
def test_files_are_fetched_from_the_transfer_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with servers(tmp_path, login=["SetEnv WHO=login"], dtn=["SetEnv WHO=dtn"]) as laptop:
        for name, value in laptop.env.items():
            monkeypatch.setenv(name, value)
        profile = Cluster(host="login", transfer_host="dtn", runs_dir="~/runs")
        transport = build_ssh_connect(profile, tmp_path / "mirror")({})
        got: list[bytes] = []
        assert transport.run_script("echo $WHO; exit 3", got.append).exit_code == 3
        assert b"".join(got) == b"dtn\n"
        assert transport.run(["printenv", "WHO"]).stdout == "login\n"
        for one in (transport.connection, transport.transfers):  # type: ignore[attr-defined]
            one.close()


@pytest.mark.slow
def test_code_is_uploaded_to_the_transfer_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small files go through the login node, where sbatch runs; both must share a file system."""
    log = tmp_path / "log"
    tar = '#!/bin/sh\necho $WHO >>"$LOG"\nexec /usr/bin/tar "$@"\n'
    options: dict[str, list[str]] = {}
    for who, more in (("login", f'"SCRATCH={tmp_path}/far side"'), ("dtn", "")):
        tools = tmp_path / f"{who} tools"
        tools.mkdir()
        (tools / "tar").write_text(tar)
        (tools / "tar").chmod(0o755)
        own = f'WHO={who} "PATH={tools}:/usr/bin:/bin" "LOG={log}" "APART={tmp_path}/{who}"'
        options[who] = [f"SetEnv {own} {more}"]
    with servers(tmp_path, **options) as laptop:
        for name, value in laptop.env.items():
            monkeypatch.setenv(name, value)
        here = tmp_path / "mirror"
        env = {"SCRATCH": f"{tmp_path}/far side", "PATH": "/usr/bin:/bin", "LOG": str(log)}

        def deliver(name: str, runs_dir: str = "$SCRATCH/runs", code: str = "print(1)\n") -> str:
            run = here / name
            if not run.exists():
                (run / "code").mkdir(parents=True)
                (run / "code" / "train.py").write_text(code)
            profile = Cluster(host="login", transfer_host="dtn", runs_dir=runs_dir)
            transport = build_ssh_connect(profile, here)({})
            if lost:
                transport._run_in_time = partial(lose, transport._run_in_time)  # type: ignore[attr-defined]
            argv = ["bash", "-c", 'echo sbatch >>"$LOG"; pwd']
            try:
                return transport.submit_directories([run], argv, env=env).stdout
            finally:
                for one in (transport.connection, transport.transfers):  # type: ignore[attr-defined]
                    one.close()

        lost: list[str] = []  # what is done once, and whose answer is lost

        def lose(trip: Callable[..., Reply], what: str, script: str, **options: Any) -> Reply:
            reply = trip(what, script, **options)
            if what in lost:
                lost.remove(what)
                raise OutOfReach("connection lost", maybe_done=True)
            return reply

        monkeypatch.setattr(ssh, "PAUSES", (0.0,))
        one, two = "20261120-081455-job-7k3q", "20261120-081456-job-7k3r"
        three = "20261120-081458-job-7k3t"
        far = tmp_path / "far side" / "runs"
        assert deliver(one) == deliver(one) == f"{far / one}\n"
        assert log.read_text().split() == ["dtn", "sbatch", "login"]
        deliver(two)
        assert log.read_text().split()[3:] == ["login", "sbatch"]
        for run in (one, two):
            assert (far / run / "code" / "train.py").read_text() == "print(1)\n"
        lost += ["transfer", "bash"]
        assert deliver(three, code="print(2)\n") == f"{far / three}\n"
        assert log.read_text().split()[5:] == ["dtn", "dtn", "sbatch"]
        assert (far / three / "code" / "train.py").read_text() == "print(2)\n"
        assert not lost and not list(far.glob(".incoming-*"))
        with pytest.raises(InputError, match=r"dtn and login do not share \$APART/runs"):
            deliver("20261120-081457-job-7k3s", "$APART/runs")
