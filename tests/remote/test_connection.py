"""Connections to a real sshd: lookup, host keys, script results."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from hpcrun.errors import OutOfReach
from hpcrun.remote import connection
from hpcrun.remote.by_openssh import OpensshConnection
from hpcrun.remote.clients import open_connection
from hpcrun.remote.connection import Connection, Reply, SshSettings
from tests.needs import require_command
from tests.remote.connection_home import Nobody, at_home, connect
from tests.remote.connection_home import laptop as laptop
from tests.remote.connection_home import site as site
from tests.remote.link import Link
from tests.remote.sshd import Laptop
from tests.waiting import PATIENCE, until
from tests.workloads.trainer import free_port


def gone(pid: int) -> bool:
    """Wait until a process has ended."""

    def is_gone() -> bool:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        return False

    return until(is_gone, f"the end of process {pid}")


@pytest.fixture
def far(laptop: Laptop) -> Iterator[Connection]:
    yield connect(laptop)


@pytest.mark.slow
def test_script_returns_output_and_exit_code(far: Connection) -> None:
    assert far.run("echo out; echo err >&2; exit 7") == Reply(7, b"out\n", "err\n")
    assert far.run("printf 'no end of line'; false") == Reply(1, b"no end of line", "")


@pytest.mark.thorough  # measured
def test_second_script_costs_one_round_trip(laptop: Laptop) -> None:
    """Its session opens during the first script, or later where a site allows only one session."""
    (server,) = laptop.servers
    link = Link(server.port, delay=1.0)
    key = server.host_key
    (laptop.ssh / "known_hosts").write_text(f"[127.0.0.1]:{link.port} {key}\n")
    laptop.configure(f"Host slow\n  HostName 127.0.0.1\n  Port {link.port}\n{laptop.usual()}")
    slow = connect(laptop, "slow")
    slow.run("sleep 5")
    begun = time.monotonic()
    assert slow.run("exit 5").exit_code == 5
    assert 2 <= time.monotonic() - begun < 3.8
    link.close()


@pytest.mark.slow
def test_process_waits_for_the_only_session_of_another_hpcrun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They share a master: the follower learns that another process waits."""
    with at_home(tmp_path, monkeypatch, far=["MaxSessions 1"]) as laptop:
        one, other = (connect(laptop, way="openssh") for _ in range(2))
        begun = threading.Event()

        def follow(_: bytes) -> None:
            begun.set()
            if one.is_full:
                raise InterruptedError

        with ThreadPoolExecutor() as threads:
            script = "for ((;;)); do echo; sleep 0.1; done"
            following = threads.submit(one.run, script, on_output=follow)
            assert begun.wait(PATIENCE)
            assert other.run("exit 3").exit_code == 3
            with pytest.raises(InterruptedError):
                following.result()


@pytest.mark.slow
def test_new_master_accepts_sessions_after_a_full_one(laptop: Laptop) -> None:
    """A refused session is recorded for one master, which may end while no hpcrun runs."""
    one, other = (connect(laptop, way="openssh") for _ in range(2))
    assert isinstance(one, OpensshConnection)
    one.open()
    one.is_full = True
    assert other.run("exit 3").exit_code == 3 and other.is_full
    subprocess.run(one._ssh_argv("-O", "exit", "--", one.host), check=True, capture_output=True)
    third = connect(laptop, way="openssh")
    assert third.run("exit 3").exit_code == 3 and not third.is_full
    one.disconnect()


@pytest.mark.slow
@pytest.mark.parametrize(
    "way", ["paramiko", "openssh", pytest.param("fallback", marks=pytest.mark.thorough)]
)
def test_scripts_run_in_turn_on_a_server_with_one_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: Any
) -> None:
    """Scripts run one after the other, even those of several threads."""
    with at_home(tmp_path, monkeypatch, far=["MaxSessions 1"]) as laptop:
        if way == "fallback":  # what paramiko cannot do
            laptop.configure(f"{laptop.usual()}  VerifyHostKeyDNS yes\n")
        far = connect(laptop, way="openssh" if way == "openssh" else "paramiko")
        assert [far.run(f"exit {code}").exit_code for code in range(9)] == [*range(9)]
        begun = tmp_path / "begun"
        with ThreadPoolExecutor() as threads:
            slow = threads.submit(far.run, f"touch {begun}; sleep 0.5; exit 7")
            while not begun.exists():
                time.sleep(0.01)
            assert [far.run(f"exit {code}").exit_code for code in (3, 4)] == [3, 4]
            assert slow.result().exit_code == 7
        assert far.is_full
        monkeypatch.setattr(connection, "_SESSION_WAIT_S", 0.2)
        with pytest.raises(OutOfReach, match="refuses another session") as caught:
            far.run("echo; exec sleep 30", on_output=lambda _: print(far.run("true")))
        assert not caught.value.maybe_done


@pytest.mark.slow
def test_stdin_is_passed_only_to_the_script(far: Connection) -> None:
    data = bytes(range(256)) * 4096
    assert far.run("cat", stdin=data).stdout == data
    halves = [data[:100], b"", data[100:]]
    assert far.run("head -c 7 >/dev/null; wc -c", stdin=iter(halves)).stdout.strip() == b"1048569"
    # Unread and endless output are harmless.
    assert far.run("true", stdin=(b"x" * 9999 for _ in iter(int, 1))) == Reply(0, b"", "")


@pytest.mark.slow
def test_output_is_streamed_as_it_arrives(far: Connection, tmp_path: Path) -> None:
    got: list[bytes] = []

    def take(data: bytes) -> None:
        got.append(data)
        (tmp_path / "seen").touch()

    script = f"echo one; until [ -e {tmp_path}/seen ]; do sleep 0.01; done; echo two; exit 3"
    reply = far.run(script, on_output=take)
    assert (reply, b"".join(got)) == (Reply(3, b"", ""), b"one\ntwo\n")
    assert len(got) > 1


def test_unknown_host_key_is_refused(laptop: Laptop, far: Connection) -> None:
    (laptop.ssh / "known_hosts").write_text("")
    with pytest.raises(OutOfReach, match="SHA256:") as caught:
        far.run("true")
    assert not caught.value.maybe_done


# ------------------------------------------------------------------ the remote shell


@pytest.mark.slow
@pytest.mark.parametrize("shell", ["tcsh", "fish", "zsh", "sh"])
def test_other_login_shells_are_supported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shell: str
) -> None:
    require_command(shell)
    forced = f'ForceCommand {shell} -c "$SSH_ORIGINAL_COMMAND"'
    with at_home(tmp_path, monkeypatch, far=[forced]) as laptop:
        far = connect(laptop)
        script = "[[ a == a ]] && echo \"it's $BASH\" '!x \\ %s' && cat"
        assert far.run(script, stdin=b"in").stdout == b"it's /usr/bin/bash !x \\ %s\nin"


@pytest.mark.slow
def test_banners_and_profile_output_are_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "banner").write_text("UNAUTHORIZED USE IS PROHIBITED\n")
    there = tmp_path / "there"
    (there / "slurm").mkdir(parents=True)
    (there / ".bashrc").write_text("echo welcome; echo trouble >&2; trap 'echo bye' EXIT\n")
    (there / ".bash_profile").write_text("echo again; export FROM_PROFILE=yes\n")
    (there / "slurm" / "own-squeue").write_text("#!/bin/sh\necho 42\n")
    (there / "slurm" / "own-squeue").chmod(0o755)
    options = [f"Banner {tmp_path}/banner", f"SetEnv HOME={there}"]
    with at_home(tmp_path, monkeypatch, far=options) as laptop:
        far = connect(laptop)
        assert far.run("echo mine; echo ${FROM_PROFILE-no}") == Reply(0, b"mine\nno\n", "")
        assert far.run("own-squeue").exit_code == 127
        settings = SshSettings(host="far", login_shell=True, slurm_path=f"{there}/slurm")
        far = open_connection(settings, Nobody())
        assert far.run("own-squeue; echo ${FROM_PROFILE-no}") == Reply(0, b"42\nyes\n", "")
        far.close()


@pytest.mark.slow
def test_account_without_a_shell_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with at_home(tmp_path, monkeypatch, far=["ForceCommand echo This account is closed"]) as laptop:
        with pytest.raises(OutOfReach, match="This account is closed") as caught:
            connect(laptop).run("true")
        assert not caught.value.maybe_done


@pytest.mark.slow
@pytest.mark.parametrize("profile", ["exec zsh", "read -r line", "cat >/dev/null", "exit 0"])
def test_profile_that_replaces_the_session_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, profile: str
) -> None:
    """Another shell would run the frame as its script and report success."""
    require_command("zsh")
    (tmp_path / "profile").write_text(profile)
    command = f'ForceCommand . {tmp_path}/profile; eval "$SSH_ORIGINAL_COMMAND"'
    with at_home(tmp_path, monkeypatch, far=[command]) as laptop:
        with pytest.raises(OutOfReach, match="did not start bash") as caught:
            connect(laptop).run("true")
        assert not caught.value.maybe_done and "echo echo yes | ssh far bash" in caught.value.fix


@pytest.mark.slow
def test_streaming_script_ends_with_the_connection(far: Connection, tmp_path: Path) -> None:
    def stop(data: bytes) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        far.run(f"echo $BASHPID >{tmp_path}/pid; echo; exec sleep 60", on_output=stop)
    pid = int((tmp_path / "pid").read_text())
    assert gone(pid)
    assert far.run("echo on").stdout == b"on\n"


@pytest.mark.slow
def test_timeout_and_excessive_output_are_reported(
    far: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(OutOfReach, match=r"no response within 0\.3 s") as caught:
        far.run("sleep 5", timeout=0.3)
    assert caught.value.maybe_done
    monkeypatch.setattr("hpcrun.remote.connection.MOST_OUTPUT", 1 << 20)
    with pytest.raises(OutOfReach, match="longer than"):
        far.run("head -c 9000000 /dev/zero")
    # The beginning of the error output is sufficient.
    monkeypatch.setattr("hpcrun.remote.connection.MOST_STDERR", 1 << 10)
    reply = far.run("head -c 100000 /dev/zero >&2; echo ok")
    assert reply.stdout == b"ok\n"
    assert len(reply.stderr) <= 1 << 10


def test_local_error_in_sent_data_is_raised(far: Connection) -> None:
    def broken() -> Iterator[bytes]:
        yield b"x"
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"):
        far.run("cat", stdin=broken())


# ------------------------------------------------------------------ routes to the host


@pytest.mark.slow
def test_connection_over_two_jump_hosts_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with at_home(tmp_path, monkeypatch, first=[], second=[], far=[]) as laptop:
        laptop.configure(laptop.usual() + "Host far\n  ProxyJump first,second\n")
        assert connect(laptop).run("echo $SSH_CONNECTION").exit_code == 0
        for server in laptop.servers:
            assert "Accepted publickey" in server.log
        # With their own settings without an ssh client, and with the system's ssh.
        laptop.configure(
            laptop.usual() + "Host far\n  ProxyJump second\nHost second\n  ProxyJump first\n"
        )
        assert connect(laptop).run("exit 3").exit_code == 3
        monkeypatch.setattr("hpcrun.remote.ssh_config.find_ssh", lambda: None)
        assert connect(laptop).run("exit 4").exit_code == 4
        assert laptop.servers[0].log.count("Accepted publickey") == 3
        second = f"root@127.0.0.1:{laptop.servers[1].port}"
        laptop.configure(laptop.usual() + f"Host far\n  ProxyJump first,{second}\n")
        assert connect(laptop).run("exit 5").exit_code == 5
        monkeypatch.undo()
        for name, value in laptop.env.items():
            monkeypatch.setenv(name, value)
        assert connect(laptop).run("exit 6").exit_code == 6
        laptop.configure(laptop.usual() + "Host far\n  ProxyJump second\n")
        laptop.trust(laptop.servers[0], laptop.servers[2])
        with pytest.raises(OutOfReach, match="second: the host key"):
            connect(laptop).run("true")


def test_circular_jump_hosts_are_refused(laptop: Laptop) -> None:
    laptop.configure(laptop.usual() + "Host far\n  ProxyJump a\nHost a\n  ProxyJump far\n")
    with pytest.raises(OutOfReach, match="jump hosts"):
        connect(laptop).run("true")


@pytest.mark.slow
def test_connection_by_proxy_command_works(laptop: Laptop, tmp_path: Path) -> None:
    proxy = tmp_path / "pr oxy"
    proxy.write_text(
        "import os, socket, sys, threading\n"
        "far = socket.create_connection((sys.argv[1], int(sys.argv[2])))\n"
        "def up():\n"
        "    while data := os.read(0, 9999): far.sendall(data)\n"
        "threading.Thread(target=up, daemon=True).start()\n"
        "while data := far.recv(9999): os.write(1, data)\n"
    )
    laptop.configure(laptop.usual() + f"Host far\n  ProxyCommand python3 '{proxy}' %h %p\n")
    far = connect(laptop)
    assert far.run("cat", stdin=b"x" * 99999).stdout == b"x" * 99999
    far.close()
    laptop.configure(laptop.usual() + "Host far\n  ProxyCommand exit 1\n")
    with pytest.raises(OutOfReach, match="is not an SSH server"):
        connect(laptop).run("true")


@pytest.mark.slow
def test_ssh_settings_from_include_and_match_apply(laptop: Laptop) -> None:
    (laptop.ssh / "more").write_text(
        'Match exec "test %n = cluster"\n  HostName 127.0.0.1\n'
        f"  Port {laptop.servers[0].port}\n  HostKeyAlias named\n"
    )
    key = laptop.servers[0].host_key
    (laptop.ssh / "known_hosts").write_text(f"*.example,named {key}\n")
    laptop.configure(f"Include {laptop.ssh}/mor*\n{laptop.usual()}")
    assert connect(laptop, "cluster").run("exit 5").exit_code == 5
    laptop.configure(laptop.usual() + "Host far\n  Porrt 22\n")
    with pytest.raises(OutOfReach, match="Bad configuration option: porrt") as caught:
        connect(laptop).run("true")
    assert caught.value.exit_code == 4


@pytest.mark.slow
def test_unknown_and_unreachable_hosts_are_reported(laptop: Laptop) -> None:
    with pytest.raises(OutOfReach, match=r"host name no-such-host\.invalid does not resolve"):
        connect(laptop, "no-such-host.invalid").run("true")
    laptop.configure(laptop.usual() + f"Host off\n  HostName 127.0.0.1\n  Port {free_port()}\n")
    with pytest.raises(OutOfReach, match="Connection refused"):
        connect(laptop, "off").run("true")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        laptop.configure(
            laptop.usual() + f"Host slow\n  HostName 127.0.0.1\n  Port {port}\n  ConnectTimeout 1\n"
        )
        with pytest.raises(OutOfReach, match="accepts connections, but sends nothing within 1 s"):
            connect(laptop, "slow").run("true")


def test_port_is_forwarded(far: Connection) -> None:
    with socket.create_server(("127.0.0.1", 0)) as web:
        port = far.forward_port("127.0.0.1", web.getsockname()[1])
        with socket.create_connection(("127.0.0.1", port)) as browser:
            there, _ = web.accept()
            browser.sendall(b"GET /")
            assert there.recv(99) == b"GET /"
            there.sendall(b"200")
            there.close()
            assert browser.recv(99) == b"200"
            assert browser.recv(99) == b""


def test_forwarded_port_closes_silently_with_the_connection() -> None:
    class Gone:
        """As paramiko's channels are then."""

        def recv(self, size: int) -> bytes:
            raise OSError

        def shutdown(self, how: int) -> None:
            raise EOFError

        def close(self) -> None:
            raise EOFError

    here, browser = socket.socketpair()
    with browser:
        browser.shutdown(socket.SHUT_WR)
        connection.relay_sockets(here, Gone())
        assert browser.recv(99) == b""


# ------------------------------------------------------------------ host keys


@pytest.mark.slow
def test_changed_and_revoked_host_keys_are_refused(laptop: Laptop) -> None:
    server = laptop.servers[0]
    name = f"[127.0.0.1]:{server.port}"
    other = (laptop.ssh / "id.pub").read_text()
    (laptop.ssh / "known_hosts").write_text(f"# comment\n{name} {other}")
    far = connect(laptop)
    with pytest.raises(OutOfReach, match="has changed") as caught:
        far.run("true")
    shown = subprocess.run(
        ["ssh-keygen", "-l", "-f", str(server.folder / "host_key.pub")],
        capture_output=True, text=True, check=True,
    ).stdout.split()[1]  # fmt: skip
    assert shown in caught.value.message
    assert "known_hosts, line 2" in caught.value.message
    assert f"ssh-keygen -R '{name}'" in caught.value.fix
    laptop.trust(server)
    with pytest.raises(OutOfReach, match="has changed"):
        far.run("true")  # what was refused is not tried again
    assert connect(laptop).run("true").exit_code == 0
    (laptop.ssh / "known_hosts").write_text(
        f"{name} {server.host_key}\n@revoked * {server.host_key}\n"
    )
    with pytest.raises(OutOfReach, match="revoked"):
        connect(laptop).run("true")


@pytest.mark.slow
def test_hashed_known_hosts_and_their_key_types_are_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rsa = tmp_path / "rsa"
    argv = ["ssh-keygen", "-q", "-t", "rsa", "-b", "2048", "-N", "", "-f", str(rsa)]
    subprocess.run(argv, check=True)
    with at_home(tmp_path, monkeypatch, far=[f"HostKey {rsa}"]) as laptop:
        known = laptop.ssh / "known_hosts"
        key = " ".join(rsa.with_suffix(".pub").read_text().split()[:2])
        known.write_text(f"[127.0.0.1]:{laptop.servers[0].port} {key}\n")
        subprocess.run(
            ["ssh-keygen", "-q", "-H", "-f", str(known)], check=True, capture_output=True
        )
        assert known.read_text().startswith("|1|")
        assert connect(laptop).run("exit 2").exit_code == 2


@pytest.mark.slow
def test_host_certificate_is_left_to_ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certificate = tmp_path / "far" / "host_key-cert.pub"
    with at_home(tmp_path, monkeypatch, far=[f"HostCertificate {certificate}"]) as laptop:
        authority = laptop.make_key("ca")
        key = laptop.servers[0].folder / "host_key.pub"
        sign = ["ssh-keygen", "-q", "-s", str(authority), "-I", "far", "-h", str(key)]
        subprocess.run(sign, check=True)
        laptop.servers[0].stop()
        laptop.servers[0].start()
        public = authority.with_suffix(".pub").read_text()
        (laptop.ssh / "known_hosts").write_text(f"@cert-authority [127.0.0.1]:* {public}")
        user = Nobody()
        far = open_connection(SshSettings(host="far"), user)
        assert far.run("cat; exit 9", stdin=b"data") == Reply(9, b"data", "")
        far.close()
        assert "using the system's ssh: @cert-authority" in user.told[0]


@pytest.mark.slow
def test_hardware_key_is_left_to_ssh(laptop: Laptop) -> None:
    """ssh tries the next key if the token is missing."""
    (laptop.ssh / "token").touch(0o600)
    (laptop.ssh / "token.pub").write_text("sk-ssh-ed25519@openssh.com AAAA me\n")
    laptop.configure(f"Host *\n  IdentityFile {laptop.ssh}/token\n{laptop.usual()}")
    user = Nobody()
    far = open_connection(SshSettings(host="far"), user)
    assert far.run("exit 9").exit_code == 9
    far.close()
    assert "using the system's ssh: a hardware key" in user.told[0]
