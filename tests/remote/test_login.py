"""Authentication: keys, agents, passphrases, passwords and codes; and refusals."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from hpcrun.context import build_context, use_system_ssh
from hpcrun.errors import OutOfReach
from hpcrun.remote import by_paramiko
from hpcrun.remote.by_openssh import OpensshConnection, runtime_folder
from hpcrun.remote.clients import open_connection
from hpcrun.remote.connection import Connection, Reply, SshSettings
from hpcrun.remote.ssh import SshTransport
from hpcrun.remote.ssh_config import hops_to
from hpcrun.spec.job import Cluster
from tests.remote.askers import Questioner, askers
from tests.remote.connection_home import Nobody, at_home, connect
from tests.remote.link import Link
from tests.remote.sshd import Laptop
from tests.source import ROOT
from tests.waiting import PATIENCE, until
from tests.workloads.trainer import free_port

pytestmark = pytest.mark.slow


class Answers(Nobody):
    """A person who knows some answers; keeps the questions."""

    def __init__(self, *answers: str) -> None:
        super().__init__()
        self.answers = list(answers)
        self.questions: list[str] = []

    def secret(self, question: str, *, echo: bool = False) -> str:
        self.questions.append(question + (" (seen)" if echo else ""))
        return self.answers.pop(0)


@pytest.fixture
def laptop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Laptop]:
    with at_home(tmp_path, monkeypatch, far=[]) as found:
        yield found


def let_in(laptop: Laptop, key: Path) -> None:
    """Add a key to the server's authorized_keys."""
    (laptop.servers[0].folder / "authorized_keys").write_text(Path(f"{key}.pub").read_text())


def only(laptop: Laptop, text: str) -> None:
    """Configure the keys to try."""
    usual = laptop.usual().replace(f"  IdentityFile {laptop.ssh}/id\n", text)
    laptop.configure(usual)


@pytest.mark.parametrize("kind", ["ed25519", "rsa", "ecdsa"])
def test_key_with_a_passphrase_is_accepted(laptop: Laptop, kind: str) -> None:
    key = laptop.make_key("locked", "open sesame", kind)
    let_in(laptop, key)
    only(laptop, f"  IdentityFile {key}\n")
    user = Answers("wrong", "open sesame")
    far = open_connection(SshSettings(host="far"), user)
    assert far.run("exit 6").exit_code == 6
    assert far.run("exit 7").exit_code == 7
    far.close()
    assert user.questions == [f"root@127.0.0.1:{laptop.servers[0].port}: passphrase of {key}"] * 2
    assert "sesame" not in "".join(user.told)


def test_agent_key_is_used_with_identities_only(
    laptop: Laptop, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, others = laptop.make_key("agents"), [laptop.make_key(f"other{n}") for n in range(7)]
    let_in(laptop, key)
    sock = laptop.home / "agent"
    agent = subprocess.Popen(["ssh-agent", "-D", "-a", str(sock)], stdout=subprocess.DEVNULL)
    try:
        while not sock.exists():
            time.sleep(0.01)
        env = {**os.environ, "SSH_AUTH_SOCK": str(sock)}
        argv = ["ssh-add", "-q", *map(str, others), str(key)]
        subprocess.run(argv, env=env, check=True, capture_output=True)
        key.unlink()  # what is left is the public half
        only(laptop, f"  IdentityFile {key}\n  IdentityAgent {sock}\n")
        assert connect(laptop).run("exit 6").exit_code == 6
        monkeypatch.setenv("SSH_AUTH_SOCK", str(sock))
        only(laptop, f"  IdentityFile {key}\n")
        assert connect(laptop).run("exit 6").exit_code == 6
        (laptop.ssh / "config").write_text(
            (laptop.ssh / "config").read_text().replace("IdentitiesOnly yes", "")
        )
        only(laptop, f"  IdentityFile {laptop.ssh}/none\n")
        text = (
            (laptop.ssh / "config").read_text().replace("IdentitiesOnly yes", "IdentitiesOnly no")
        )
        (laptop.ssh / "config").write_text(text)
        with pytest.raises(OutOfReach, match="IdentitiesOnly"):
            connect(laptop).run("true")  # more keys than a server looks at
    finally:
        agent.terminate()
        agent.wait()


def test_key_declined_by_the_agent_is_skipped(laptop: Laptop) -> None:
    """After the user declined its use, the next key is tried."""
    key, sock = laptop.make_key("confirmed"), laptop.home / "agent"
    env = {**os.environ, "SSH_AUTH_SOCK": str(sock), "SSH_ASKPASS": "/bin/false"}
    argv = ["ssh-agent", "-D", "-a", str(sock)]
    agent = subprocess.Popen(argv, env=env, stdout=subprocess.DEVNULL)
    try:
        until(sock.exists, "the agent")
        subprocess.run(["ssh-add", "-q", "-c", str(key)], env=env, check=True, capture_output=True)
        lines = f"  IdentityAgent {sock}\n  IdentityFile {key}\n"
        only(laptop, lines)
        with pytest.raises(
            OutOfReach, match=r"authentication failed for .*: the agent's .*cannot be used for sig"
        ):
            connect(laptop).run("true")
        only(laptop, f"{lines}  IdentityFile {laptop.ssh}/id\n")
        assert connect(laptop).run("exit 6").exit_code == 6
    finally:
        agent.terminate()
        agent.wait()


def test_user_certificate_is_accepted(laptop: Laptop) -> None:
    authority, key = laptop.make_key("ca"), laptop.make_key("mine")
    sign = ["ssh-keygen", "-q", "-s", str(authority), "-I", "me", "-n", "root", f"{key}.pub"]
    subprocess.run(sign, check=True)
    server = laptop.servers[0]
    server.stop()
    server.options.append(f"TrustedUserCAKeys {authority}.pub")
    server.start()
    certificate = key.with_name("mine-cert.pub").rename(laptop.ssh / "elsewhere.pub")
    only(laptop, f"  IdentityFile {key}\n")
    with pytest.raises(OutOfReach, match="was rejected"):
        connect(laptop).run("true")
    only(laptop, f"  IdentityFile {key}\n  CertificateFile {certificate}\n")
    assert connect(laptop).run("exit 8").exit_code == 8


def test_refused_key_is_not_tried_again(laptop: Laptop) -> None:
    key = laptop.make_key("other")
    only(laptop, f"  IdentityFile {key}\n")
    far = connect(laptop)
    for _ in range(2):
        with pytest.raises(OutOfReach, match=f"{key} was rejected") as caught:
            far.run("true")
        assert caught.value.is_final
        assert not caught.value.maybe_done
    assert laptop.servers[0].log.count("Failed publickey") == 1
    only(laptop, f"  IdentityFile {laptop.ssh}/wrong-path\n")
    with pytest.raises(OutOfReach, match="wrong-path: no such key file") as caught:
        connect(laptop).run("true")
    assert caught.value.exit_code == 4
    only(laptop, f"  IdentityFile {laptop.ssh}/{'x' * 300}\n")
    with pytest.raises(
        OutOfReach, match=r"authentication failed for .*x cannot be read: File name too long \("
    ):
        connect(laptop).run("true")


# ------------------------------------------------------------------ questions


@pytest.fixture
def asking(laptop: Laptop) -> Iterator[Callable[..., Questioner]]:
    with askers(laptop) as start:
        yield start


def test_password_is_prompted_once(asking: Any) -> None:
    server, user = asking("password"), Answers("swordfish")
    far = open_connection(SshSettings(host="asks"), user)
    assert far.run("echo in") == Reply(0, b"in\n", "")
    assert far.run("echo on") == Reply(0, b"on\n", "")
    far.close()
    with pytest.raises(OutOfReach, match="requires a prompt") as caught:
        far.run("echo again")
    assert caught.value.is_final
    assert server.given == ["swordfish"]
    assert "none" not in server.tried  # a key shows what the server takes, and may be let in
    assert not [text for text in user.told if "swordfish" in text]


@pytest.mark.parametrize(
    "names, tried",
    [
        # A server that allows keys does not list other methods; the method "none" reveals them.
        (["IdentityFile id"], ["key", "none"]),
        (["IdentityFile id", "IdentityFile more"], ["none", "key", "certificate", "key"]),
        (
            ["IdentityFile id", "IdentityFile more", "CertificateFile more-cert.pub"],
            ["none", "key", "certificate", "key"],
        ),
    ],
)
def test_refused_keys_are_offered_once(asking: Any, laptop: Laptop, names: Any, tried: Any) -> None:
    """Servers limit attempts, so refused keys leave fewer for a password."""
    laptop.make_key("more")
    id_, more = laptop.ssh / "id", laptop.ssh / "more.pub"
    subprocess.run(["ssh-keygen", "-q", "-s", id_, "-I", "me", "-n", "root", more], check=True)
    server, user = asking("publickey,password"), Answers("swordfish")
    server.knows_keys = False
    lines = [f"  {word} {laptop.ssh}/{name}\n" for word, name in map(str.split, names)]
    config = laptop.ssh / "config"
    usual = f"  IdentityFile {laptop.ssh}/id\n"
    config.write_text(config.read_text().replace(usual, "".join(lines)))
    far = open_connection(SshSettings(host="asks"), user)
    assert far.run("exit 3").exit_code == 3
    far.close()
    assert server.tried == tried
    assert server.given == ["swordfish"]


def test_key_followed_by_prompts_is_accepted(asking: Any) -> None:
    server, user = asking("publickey"), Answers("swordfish", "123456")
    far = open_connection(SshSettings(host="asks"), user)
    assert far.run("exit 3").exit_code == 3
    far.close()
    assert server.given == ["swordfish", "123456"]
    assert [question.split("127.0.0.1")[0] for question in user.questions] == [
        "Site\nPush or code\nroot@", "root@",
    ]  # fmt: skip
    assert user.questions[0].endswith(": Password")
    assert user.questions[1].endswith(": Verification code (seen)")


@pytest.mark.parametrize("method", ["password", "keyboard-interactive,password"])
def test_wrong_password_ends_the_login(asking: Any, method: str) -> None:
    server, user = asking(method), Answers("guess", "000000", "again", "again")
    far = open_connection(SshSettings(host="asks"), user)
    for _ in range(2):
        with pytest.raises(OutOfReach, match="rejected") as caught:
            far.run("true")
        assert caught.value.is_final
        assert "guess" not in str(caught.value)
    assert server.given in (["guess"], ["guess", "000000"])
    far.close()


def test_secrets_typed_on_a_terminal_are_not_echoed(laptop: Laptop) -> None:
    key = laptop.make_key("locked", "open sesame")
    let_in(laptop, key)
    only(laptop, f"  IdentityFile {key}\n")
    program = (
        "from hpcrun.cli.output import TerminalPrompts\n"
        "from hpcrun.remote.connection import SshSettings\n"
        "from hpcrun.remote.clients import open_connection\n"
        "far = open_connection(SshSettings(host='far'), TerminalPrompts(is_verbose=True))\n"
        "print(far.run('echo in; exit 5'))\n"
    )
    # Without a terminal there is no prompt.
    argv = [sys.executable, "-c", program]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, start_new_session=True)
    assert "cannot prompt: no terminal" in done.stderr
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(ROOT)
        os.execv(sys.executable, argv)
    shown = b""
    while b"passphrase of" not in shown:
        shown += os.read(terminal, 999)
    time.sleep(0.2)
    os.write(terminal, b"open sesame\n")
    try:
        while data := os.read(terminal, 999):
            shown += data
    except OSError:  # the terminal's end
        pass
    os.waitpid(pid, 0)
    os.close(terminal)
    assert b"Reply(exit_code=5" in shown
    assert b"sesame" not in shown


# ------------------------------------------------------------------ broken links


class Cutter:
    """A proxy that ends connections after a number of bytes from the client."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.most: int | None = None
        self.count = 0
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.own_port = int(self.listener.getsockname()[1])
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        self.listener.shutdown(socket.SHUT_RDWR)  # ends accept, which close alone does not
        self.listener.close()

    def _serve(self) -> None:
        while True:
            try:
                near, _ = self.listener.accept()
            except OSError:
                return
            far = socket.create_connection(("127.0.0.1", self.port))
            self.count = 0
            for ends in ((near, far, True), (far, near, False)):
                threading.Thread(target=self._copy, args=ends, daemon=True).start()

    def _copy(self, source: socket.socket, sink: socket.socket, counts: bool) -> None:
        try:
            while data := source.recv(4096):
                if counts and self.most is not None:
                    data = data[: self.most - self.count]
                self.count += len(data) if counts else 0
                sink.sendall(data)
                if counts and self.count == self.most:
                    break
        except OSError:
            pass
        self.end(source, sink)

    def end(self, *sockets: socket.socket) -> None:
        for each in sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()


@pytest.mark.parametrize("way", ["paramiko", pytest.param("openssh", marks=pytest.mark.thorough)])
def test_link_cut_at_any_point_is_reported(laptop: Laptop, tmp_path: Path, way: Any) -> None:
    cutter = Cutter(laptop.servers[0].port)
    key = laptop.servers[0].host_key
    with (laptop.ssh / "known_hosts").open("a") as known:
        known.write(f"[127.0.0.1]:{cutter.own_port} {key}\n")
    laptop.configure(f"Host cut\n  HostName 127.0.0.1\n  Port {cutter.own_port}\n{laptop.usual()}")
    mark = tmp_path / "done"
    script = f"echo x >>{mark}; cat >/dev/null; echo y"

    def data() -> Iterator[bytes]:
        for _ in range(200):  # until the script has begun
            if mark.exists():
                break
            time.sleep(0.01)
        yield b"z" * 5000

    whole = open_connection(SshSettings(host="cut", ssh=way), Nobody())
    whole.run(script, stdin=data())
    used = cutter.count
    whole.close()
    if isinstance(whole, OpensshConnection):
        whole.disconnect()
    verdicts = set()
    for most in range(200, used - 200, used // 10):
        mark.unlink(missing_ok=True)
        cutter.most = most
        far = open_connection(SshSettings(host="cut", ssh=way), Nobody())
        with pytest.raises(OutOfReach) as caught:
            far.run(script, stdin=data())
        far.close()
        time.sleep(0.1)
        verdicts.add((mark.exists(), caught.value.maybe_done))
    cutter.close()
    # An operation reported as impossible was not executed.
    assert (True, False) not in verdicts
    assert {(False, False), (True, True)} <= verdicts


class Freezer(Cutter):
    """A Cutter that stops forwarding in both directions."""

    def __init__(self, port: int) -> None:
        self.is_frozen, self.is_over = threading.Event(), threading.Event()
        super().__init__(port)

    def _copy(self, source: socket.socket, sink: socket.socket, counts: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(4096):
                if self.is_frozen.is_set():
                    self.is_over.wait(PATIENCE)
                    break
                sink.sendall(data)
        self.end(source, sink)


def connect_at(laptop: Laptop, port: int, *, limit: int = 1) -> Connection:
    """Return a connection through a proxy, which fails after some seconds without data."""
    key = laptop.servers[0].host_key
    (laptop.ssh / "known_hosts").write_text(f"[127.0.0.1]:{port} {key}\n")
    laptop.configure(
        f"Host cut\n  HostName 127.0.0.1\n  Port {port}\n"
        f"  ServerAliveInterval 1\n  ServerAliveCountMax {limit}\n{laptop.usual()}"
    )
    return connect(laptop, "cut")


def test_silent_connection_is_aborted(laptop: Laptop) -> None:
    cutter = Freezer(laptop.servers[0].port)
    far = connect_at(laptop, cutter.own_port)
    with pytest.raises(OutOfReach, match="connection lost"):
        far.run("echo; sleep 30", on_output=lambda data: cutter.is_frozen.set(), timeout=PATIENCE)
    cutter.is_over.set()
    cutter.close()


def test_late_keepalive_response_does_not_end_a_connection_with_data(laptop: Laptop) -> None:
    """Behind a large transfer, the response to a keepalive arrives late."""
    link = Link(laptop.servers[0].port)
    far = connect_at(laptop, link.port, limit=3)
    words: list[bytes] = []

    def receive(data: bytes) -> None:
        link.delay = 2.0  # in each direction
        words.extend(data.split())

    far.run("for i in {1..30}; do echo $i; sleep 0.2; done", on_output=receive, timeout=PATIENCE)
    assert words == [b"%d" % i for i in range(1, 31)]
    link.close()


def test_frozen_link_is_detected_within_half_a_minute(laptop: Laptop) -> None:
    laptop.configure("")
    hop = hops_to("far.example.org")[-1]
    assert hop.alive_interval * (hop.alive_count + 1) <= 20
    assert by_paramiko._TCP_LIMITS["TCP_USER_TIMEOUT"] <= 30_000
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = structs.replace(hop, hostname="127.0.0.1", port=server.getsockname()[1])
        with by_paramiko._connect_socket(near) as made:
            assert made.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            idle, interval, count = (
                made.getsockopt(socket.IPPROTO_TCP, getattr(socket, name))
                for name in ("TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT")
            )
    assert idle + interval * count <= 30


# ------------------------------------------------------------------ the system's ssh


def test_all_commands_share_one_master(laptop: Laptop) -> None:
    settings = SshSettings(host="far", ssh="openssh")
    for code in (3, 4):
        far = open_connection(settings, Nobody())
        assert far.run(f"cat; exit {code}",
                       stdin=b"x" * 99999) == Reply(code, b"x" * 99999, "")  # fmt: skip
        far.close()
    assert laptop.servers[0].log.count("Accepted publickey") == 1
    assert (laptop.runtime / "hpcrun").stat().st_mode & 0o777 == 0o700
    with socket.create_server(("127.0.0.1", 0)) as web:
        port = far.forward_port("127.0.0.1", web.getsockname()[1])
        with socket.create_connection(("127.0.0.1", port)) as browser:
            there, _ = web.accept()
            browser.sendall(b"GET /")
            assert there.recv(99) == b"GET /"
            there.close()
    # hpcrun shell and hpcrun top start ssh.
    here = SshTransport({}, connection=far, mirror=laptop.home / "runs", runs_dir="~/runs")
    argv, env = here.wrap_command(["sh", "-c", "exit 6"])
    assert subprocess.run(argv, env=env, check=False).returncode == 6
    assert laptop.servers[0].log.count("Accepted publickey") == 1
    assert isinstance(far, OpensshConnection)
    assert far.disconnect()
    assert not far.disconnect()


def test_a_shell_logs_in_once_whatever_the_profile_names(laptop: Laptop) -> None:
    profile = build_context(
        laptop.env, laptop.home, laptop.home, Cluster(host="far"), "hpcrun.yaml", Nobody()
    )
    where = use_system_ssh(profile, Nobody())
    here = where.transport()
    assert here.run(["sh", "-c", "exit 5"], timeout=60).exit_code == 5  # find_node()
    argv, env = here.wrap_command(["sh", "-c", "exit 6"])
    assert subprocess.run(argv, env=env, check=False).returncode == 6
    assert laptop.servers[0].log.count("Accepted publickey") == 1
    assert isinstance(here, SshTransport) and isinstance(here.connection, OpensshConnection)
    assert not here.connection.keeps
    assert here.connection.disconnect()


def _listens(control: Path) -> bool:
    """Return True if a process listens; sockets close last when a process ends."""
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(control)) == 0


def test_killed_master_is_replaced(laptop: Laptop) -> None:
    """Its leftover socket must not block a new master."""
    far = open_connection(SshSettings(host="far", ssh="openssh"), Nobody())
    far.run("true")
    (control,) = (laptop.runtime / "hpcrun").iterdir()
    asked = subprocess.run(
        ["ssh", "-S", str(control), "-O", "check", "far"],
        capture_output=True,
        text=True,
        check=True,
    )
    master = int(re.findall(r"pid=(\d+)", asked.stdout + asked.stderr)[0])
    os.kill(master, signal.SIGKILL)
    until(lambda: not _listens(control), "its end")
    assert control.is_socket()
    for code in (3, 4):
        again = open_connection(SshSettings(host="far", ssh="openssh"), Nobody())
        assert again.run(f"exit {code}").exit_code == code
    assert laptop.servers[0].log.count("Accepted publickey") == 2


def test_refusals_of_the_system_ssh_are_reported(laptop: Laptop) -> None:
    shown = subprocess.run(
        ["ssh-keygen", "-l", "-f", str(laptop.servers[0].folder / "host_key.pub")],
        capture_output=True, text=True, check=True,
    ).stdout.split()[1]  # fmt: skip
    other = (laptop.ssh / "id.pub").read_text()
    name = f"[127.0.0.1]:{laptop.servers[0].port}"
    cases = {"": "is unknown: ssh-ed25519 ", f"{name} {other}": "has changed"}
    for known, message in cases.items():
        (laptop.ssh / "known_hosts").write_text(known)
        far = open_connection(SshSettings(host="far", ssh="openssh"), Nobody())
        with pytest.raises(OutOfReach, match=message) as caught:
            far.run("true")
        assert caught.value.is_final
        assert shown in caught.value.message
    laptop.trust(*laptop.servers)
    only(laptop, f"  IdentityFile {laptop.make_key('other')}\n  BatchMode yes\n")
    with pytest.raises(OutOfReach, match="authentication failed") as caught:
        open_connection(SshSettings(host="far", ssh="openssh"), Nobody()).run("true")
    assert caught.value.is_final
    laptop.configure(laptop.usual() + f"Host off\n  HostName 127.0.0.1\n  Port {free_port()}\n")
    with pytest.raises(OutOfReach, match="Connection refused") as caught:
        open_connection(SshSettings(host="off", ssh="openssh"), Nobody()).run("true")
    assert not caught.value.is_final


def test_control_folder_accessible_to_others_is_refused(laptop: Laptop) -> None:
    (laptop.runtime / "hpcrun").mkdir(mode=0o755)
    with pytest.raises(OutOfReach, match="must belong to you"):
        runtime_folder()


# ------------------------------------------------------------------ hpcrun connect


def call(laptop: Laptop, profile: str, *words: str) -> tuple[int, str, str]:
    """Call hpcrun in a project with a profile, without a terminal."""
    (laptop.home / "hpcrun.yaml").write_text(profile)
    done = subprocess.run(
        [sys.executable, "-m", "hpcrun", *words],
        cwd=laptop.home,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        start_new_session=True,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def test_connect_reports_the_cluster(laptop: Laptop) -> None:
    tools = laptop.home / "slurm"
    tools.mkdir()
    (tools / "sbatch").write_text("#!/bin/sh\necho slurm 24.11.5\n")
    (tools / "sbatch").chmod(0o755)
    profile = f"host: far\nslurm_path: {tools}\n"
    code, out, err = call(laptop, profile, "connect", "--verbose")
    assert (code, out) == (0, "connected to far: slurm 24.11.5\n")
    assert f"accepted {laptop.ssh}/id" in err and "it is not kept open" in err
    kept = f"{profile}ssh: openssh\n"
    for _ in range(2):
        assert call(laptop, kept, "connect") == (0, "connected to far: slurm 24.11.5\n", "")
    assert laptop.servers[0].log.count("Accepted publickey") == 2
    assert call(laptop, kept, "connect", "--close")[:2] == (0, "disconnected\n")
    assert call(laptop, kept, "connect", "--close")[:2] == (0, "there was no connection\n")
    (tools / "sbatch").write_text("#!/bin/sh\necho ${SLURM_CONF-no library} >&2\nexit 1\n")
    code, out, err = call(laptop, profile, "connect")
    assert (code, out) == (4, "")
    assert "sbatch does not run there: no library" in err and "slurm_path" in err
    code, _, err = call(laptop, f"{profile}slurm_conf: /etc/far.conf\n", "connect")
    assert code == 4 and "sbatch does not run there: /etc/far.conf" in err
    code, _, err = call(laptop, "name: here\n", "connect")
    assert code == 2 and "this profile has no host:" in err


@pytest.mark.parametrize("words", ["status 4242", "connect"])
def test_commands_without_a_connection_exit_with_4(laptop: Laptop, words: str) -> None:
    (laptop.ssh / "known_hosts").write_text("")
    code, _, err = call(laptop, "host: far\n", *words.split())
    assert code == 4
    assert "is unknown: ssh-ed25519 SHA256:" in err and "fix: run ssh far once" in err
    assert "Traceback" not in err
