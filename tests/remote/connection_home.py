"""A home folder with an SSH configuration, and connections made from it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest

from hpcrun.errors import OutOfReach
from hpcrun.remote.clients import open_connection
from hpcrun.remote.connection import Connection, SshSettings
from tests.remote.sshd import Laptop, servers


class Nobody:
    """No terminal; keeps what was told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def secret(self, question: str, *, echo: bool = False) -> str:
        raise OutOfReach(f"nobody answers: {question}")

    def tell(self, text: str) -> None:
        self.told.append(text)


@contextlib.contextmanager
def at_home(
    folder: Path, monkeypatch: pytest.MonkeyPatch, **options: list[str]
) -> Iterator[Laptop]:
    """Start servers for one test, with the home of its user."""
    with servers(folder, **options) as laptop:
        for name, value in laptop.env.items():
            monkeypatch.setenv(name, value)
        monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
        yield laptop
        for each in laptop.connections:
            each.close()


def connect(
    laptop: Laptop, host: str = "far", way: Literal["paramiko", "openssh"] = "paramiko"
) -> Connection:
    """Open a connection that is closed together with the laptop."""
    made = open_connection(SshSettings(host=host, ssh=way), Nobody())
    laptop.connections.append(made)
    return made


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Laptop]:
    with servers(tmp_path_factory.mktemp("site"), far=[]) as laptop:
        yield laptop


@pytest.fixture
def laptop(site: Laptop, monkeypatch: pytest.MonkeyPatch) -> Iterator[Laptop]:
    for name, value in site.env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    site.trust(*site.servers)
    site.configure(site.usual())
    yield site
    for each in site.connections:
        each.close()
    site.connections.clear()
