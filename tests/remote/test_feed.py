"""The output of runs arrives over a real sshd: quickly, once, and again after a broken link."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from hpcrun.errors import OutOfReach
from hpcrun.logs.files import LogFile, Tail
from hpcrun.remote import feed, mirror
from hpcrun.remote.clients import open_connection
from hpcrun.remote.connection import SshSettings
from hpcrun.remote.ssh import NO_PROMPTS, SshTransport
from tests.remote.link import Link
from tests.remote.sshd import Laptop, servers
from tests.waiting import until

RUN, OTHER = "20261120-081455-job-7k3q", "20261120-081456-job-7k3r"
LOG = "logs/0/rank-0.log"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Laptop]:
    folder = tmp_path_factory.mktemp("feed")
    (folder / "far home").mkdir()
    with servers(folder, far=[f'SetEnv "HOME={folder}/far home"']) as made:
        yield made


@dataclass
class Side:
    """One hpcrun, which follows; its link and the folders of the runs there and here."""

    transport: SshTransport
    link: Link
    far: Path
    runs: Path
    laptop: Laptop

    def write(self, text: str | bytes, name: str = LOG, mode: str = "ab") -> Path:
        path = self.far / RUN / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open(mode) as file:
            file.write(text.encode() if isinstance(text, str) else text)
        return path

    def here(self, name: str = LOG) -> bytes:
        path = self.runs / RUN / name
        try:
            return path.read_bytes()
        except FileNotFoundError:  # not yet, or another file takes its place
            return b""

    def ends(self, text: bytes) -> bool:
        return self.here().endswith(text)

    def follow(self) -> None:
        self.transport.fetch_changes([self.runs / RUN], follow=True)

    def comes(self, is_there: Callable[[], bool]) -> None:
        """Follow until the condition holds."""

        def comes() -> bool:
            if not is_there():
                try:
                    self.follow()
                except OutOfReach as error:
                    assert not error.is_final, error
            return is_there()

        until(comes, lambda: str(self.here()))

    def another(self) -> SshTransport:
        """Return another hpcrun process with the same mirror."""
        connection = open_connection(SshSettings(host="link"), NO_PROMPTS)
        self.laptop.connections.append(connection)
        return SshTransport({}, connection=connection, mirror=self.runs, runs_dir="~/runs")


@pytest.fixture
def side(site: Laptop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Side]:
    for name, value in site.env.items():
        monkeypatch.setenv(name, value)
    (server,) = site.servers
    link = Link(server.port)
    site.trust(server)
    with (site.ssh / "known_hosts").open("a") as file:
        file.write(f"[127.0.0.1]:{link.port} {server.host_key}\n")
    site.configure(f"Host link\n  HostName 127.0.0.1\n  Port {link.port}\n{site.usual()}")
    far = site.home.parent / "far home" / "runs"
    runs = tmp_path / "runs"
    runs.mkdir()
    connection = open_connection(SshSettings(host="link"), NO_PROMPTS)
    transport = SshTransport({}, connection=connection, mirror=runs, runs_dir="~/runs")
    try:
        yield Side(transport, link, far, runs, site)
    finally:
        transport.feed.stop()
        connection.close()
        for each in site.connections:
            each.close()
        site.connections.clear()
        link.close()
        shutil.rmtree(far, ignore_errors=True)


@pytest.mark.slow
def test_written_output_arrives(side: Side) -> None:
    side.write("one\n")
    side.comes(lambda: side.here() == b"one\n")
    for number in range(5):
        side.write(f"line {number}\n")
        side.comes(partial(side.ends, b"%d\n" % number))
    side.write("{}", "attempts/0/end.json", "wb")
    side.comes(lambda: side.here("attempts/0/end.json") == b"{}")
    side.write("big" * 100_000 + "\n")
    side.comes(lambda: side.here().endswith(b"big\n"))
    assert side.here() == (side.far / RUN / LOG).read_bytes()


@pytest.mark.slow
def test_only_replaced_files_are_read_again(side: Side) -> None:
    """Truncated, rotated, or restarted by a requeue; each line is shown once."""
    tail = Tail()
    seen: list[bytes | None] = []

    def read() -> bytes:
        file = LogFile(side.runs / RUN / LOG)
        seen.extend(tail.lines(file))
        return b"".join(data or b"(again)" for data in seen)

    side.write("one\n")
    side.comes(lambda: read() == b"one\n")
    side.write("2, and longer\n", mode="wb")  # truncated, and more than before in it
    side.comes(lambda: read() == b"one\n(again)2, and longer\n")
    path = side.write("three\n")
    side.comes(lambda: read().endswith(b"longer\nthree\n"))
    path.rename(path.with_suffix(".old"))  # rotated
    side.write("four and a half\n")
    side.comes(lambda: read().endswith(b"three\n(again)four and a half\n"))
    side.write("five\n", "logs/1/rank-0.log")  # another attempt
    side.comes(lambda: side.here("logs/1/rank-0.log") == b"five\n")
    assert read().count(b"(again)") == 2


@pytest.mark.slow
def test_broken_link_is_reported_once_and_loses_no_output(side: Side) -> None:
    """All output written meanwhile arrives, once."""
    side.write("one\n")
    side.comes(lambda: side.here() == b"one\n")
    side.link.cut()
    side.write("two\n")
    told = []

    def comes() -> bool:
        try:
            side.follow()
        except OutOfReach as error:
            told.append(error.message)
        return bool(told) and side.here() == b"one\ntwo\n"

    until(comes, lambda: f"{told} {side.here()!r}")
    assert "link: " in told[0]
    side.write("three\n")
    side.comes(lambda: side.here() == b"one\ntwo\nthree\n")
    side.follow()


@pytest.mark.slow
def test_refused_login_is_reported_and_not_retried(side: Side) -> None:
    """The refusal is reported each time."""
    side.write("one\n")
    side.comes(lambda: side.here() == b"one\n")
    (server,) = side.laptop.servers
    key = side.laptop.ssh / "id.pub"
    text = key.read_text()
    try:
        key.write_text("")
        side.link.cut()
        with pytest.raises(OutOfReach, match="authentication failed") as caught:
            while True:
                try:
                    side.follow()
                except OutOfReach as error:
                    if error.is_final:
                        raise
                time.sleep(0.02)
        assert caught.value.is_final
        tried = server.log.count("Failed none") + server.log.count("Connection from")
        time.sleep(1)
        with pytest.raises(OutOfReach, match="authentication failed"):
            side.follow()
        again = server.log.count("Failed none") + server.log.count("Connection from")
        assert again == tried
    finally:
        key.write_text(text)


@pytest.mark.slow
def test_mirror_may_be_removed_at_any_time(side: Side) -> None:
    side.write("one\n")
    side.comes(lambda: side.here() == b"one\n")
    shutil.rmtree(side.runs / RUN)
    side.write("two\n")
    side.comes(lambda: side.here() == b"one\ntwo\n")
    (side.runs / RUN / LOG).write_text("x")
    side.write("three\n")
    side.comes(lambda: side.here() == b"one\ntwo\nthree\n")
    (side.runs / RUN / "cache/logs-there.json").write_bytes(b"\0{")
    side.write("four\n")
    side.comes(lambda: side.here() == b"one\ntwo\nthree\nfour\n")


@pytest.mark.slow
def test_two_processes_share_one_mirror(side: Side) -> None:
    """Data fetched by both is shown once, even if the log is new to both."""
    other, tail = side.another(), Tail()
    seen: list[bytes | None] = []
    path = side.runs / RUN / LOG
    over = threading.Event()

    def bring() -> None:
        while not over.is_set():
            other.fetch_changes([side.runs / RUN])

    side.write("", "plan.json")
    thread = threading.Thread(target=bring)
    thread.start()
    for number in range(300):
        side.write(f"line {number}\n")
        side.follow()
        seen.extend(tail.lines(LogFile(path)))
        time.sleep(0.005)
    over.set()
    thread.join()
    side.comes(lambda: side.here().endswith(b"line 299\n"))
    seen.extend(tail.lines(LogFile(path)))
    assert None not in seen
    assert b"".join(each or b"" for each in seen) == b"".join(
        b"line %d\n" % number for number in range(300)
    )


@pytest.mark.slow
def test_fetch_during_following_waits_for_all_output(side: Side) -> None:
    """It waits for the feed instead of a separate round trip."""
    side.write("one\n")
    side.follow()
    for number in range(3):
        side.write(f"{number}\n")
        side.transport.fetch_changes([side.runs / RUN])
        assert side.here().endswith(b"%d\n" % number)
    shutil.rmtree(side.runs / RUN)
    side.transport.fetch_changes([side.runs / RUN], whole=True)
    assert side.here() == b"one\n0\n1\n2\n"


@pytest.mark.slow
def test_feed_falls_back_to_round_trips_with_one_session(side: Side) -> None:
    """Output is fetched by round trips as soon as another script needs the session."""
    (server,) = side.laptop.servers
    server.stop()
    server.options.append("MaxSessions 1")
    server.start()
    try:
        side.write("one\n")
        side.comes(lambda: side.here() == b"one\n")
        assert side.transport.run(["echo", "on"]).stdout == "on\n"
        side.write("two\n")
        side.comes(lambda: side.here() == b"one\ntwo\n")
        assert side.transport.feed._thread is None
    finally:
        server.stop()
        server.options.remove("MaxSessions 1")
        server.start()


@pytest.mark.slow
def test_feed_stops_without_followers(side: Side, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed, "_FOLLOW_FOR_S", 0.6)
    side.write("one\n")
    side.comes(lambda: side.here() == b"one\n")
    thread = side.transport.feed._thread
    assert thread is not None
    thread.join(10)
    assert not thread.is_alive()
    side.write("two\n")
    side.comes(lambda: side.here() == b"one\ntwo\n")


@pytest.mark.slow
def test_hole_left_by_a_broken_link_is_not_read_as_zeros(
    side: Side, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Missing data is never treated as zeros."""
    text = os.urandom(6 << 20).hex().encode()
    side.write(text)
    other = side.another()
    other.fetch_changes([side.runs / RUN])
    assert 0 < len(side.here().lstrip(b"\0")) <= mirror.TAIL
    side.link.start(80)  # of at least 96 messages, with what a login has
    with pytest.raises(OutOfReach):
        side.transport.fetch_changes([side.runs / RUN], whole=True)
    assert side.link.is_cut
    assert side.here() != text
    side.another().fetch_changes([side.runs / RUN], whole=True)
    assert side.here() == text
