"""What a run has written comes from the host of transfers."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcrun.spec.job import Cluster
from hpcrun.transport.ssh import far_connect
from tests.transport.sshd import servers


def test_files_come_from_the_host_of_transfers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with servers(tmp_path, login=["SetEnv WHO=login"], dtn=["SetEnv WHO=dtn"]) as laptop:
        for name, value in laptop.env.items():
            monkeypatch.setenv(name, value)
        profile = Cluster(host="login", transfer_host="dtn", runs_dir="~/runs")
        transport = far_connect(profile, tmp_path / "mirror")({})
        got: list[bytes] = []
        assert transport.bring("echo $WHO; exit 3", got.append).exit_code == 3
        assert b"".join(got) == b"dtn\n"
        assert transport.run(["printenv", "WHO"]).stdout == "login\n"
        for one in (transport.connection, transport.transfers):  # type: ignore[attr-defined]
            one.close()
