"""Host names that may reach a shell: those that OpenSSH accepts."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from hpcrun.patterns import SSH_HOST
from tests.cli.calling import Caller

GOOD = [
    "login1", "login1.site.example", "me@login1", "ssh://me@login1:2222", "login1:22", "::1",
    "fe80::1%eth0", "DOMAIN\\me@login1", "a-b_c", "m.e-2@10.0.0.1", "größe", "a",
]  # fmt: skip
BAD = [
    "a;touch x", "$(id)", "`id`", "a b", "a\tb", "a\n", "-oProxyCommand=id", "me@-oProxyCommand=id",
    "-x@login1", "a|b", "a&b", "a>b", "{a,b}", "(a)", "a'b", 'a"b', "a\\b", "me@a\\", "me\\@a", "",
    "x;y@a", "ssh://-a", "a\x07", "$HOME", "me@$HOST", "me me@a", "a@b@c",
]  # fmt: skip


@pytest.mark.parametrize("name", GOOD)
def test_host_names_accepted_by_openssh_are_accepted(name: str) -> None:
    assert re.search(SSH_HOST, name)
    assert subprocess.run(["ssh", "-G", "--", name], capture_output=True).returncode == 0


@pytest.mark.parametrize("name", BAD)
def test_host_names_with_shell_characters_are_refused(name: str) -> None:
    assert not re.search(SSH_HOST, name)


@pytest.mark.slow
@pytest.mark.parametrize("ssh", ["paramiko", "openssh"])
@pytest.mark.parametrize("how", ["host", "transfer_host", "--host"])
def test_no_part_of_a_host_name_is_executed(
    tmp_path: Path, clean_environ: dict[str, str], ssh: str, how: str
) -> None:
    """An older ssh, or hpcrun without ssh, runs ProxyCommand in a shell."""
    hpcrun = Caller(tmp_path, clean_environ)
    sign = tmp_path / "sign"
    config = Path(hpcrun.environ["HOME"]) / ".ssh" / "config"
    config.parent.mkdir(mode=0o700)
    config.write_text('Match exec "test %n"\nHost *\n  ProxyCommand nc %h %p %n\n')
    name = f"a;touch${{IFS}}{sign};b"
    profile = f"ssh: {ssh}\nruns_dir: ~/runs\n"
    if how != "--host":
        profile += f"host: good\n{how}: '{name}'\n" if how != "host" else f"host: '{name}'\n"
    hpcrun.write("hpcrun.yaml", profile)
    if how == "--host":
        (hpcrun.project / "hpcrun.yaml").unlink()
    calls = [["init", "--host", name, "--yes"]] if how == "--host" else [["status"], ["connect"]]
    for words in calls:
        done = hpcrun.process(*words)
        assert done.code == 2 and "Traceback" not in done.err, done
        assert "host" in done.err
    assert not sign.exists()
