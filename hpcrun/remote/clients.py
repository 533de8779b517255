"""Choice of the connection for a cluster profile: paramiko or the ssh program."""

from __future__ import annotations

import re

from hpcrun.errors import InputError
from hpcrun.patterns import SSH_HOST
from hpcrun.remote.connection import Connection, Prompts, SshSettings


def open_connection(settings: SshSettings, ask: Prompts, *, keeps: bool = True) -> Connection:
    """Return the connection that a profile describes, without opening it.

    Args:
        keeps: The system's ssh keeps the connection open after the command.

    Raises:
        InputError: OpenSSH would reject the name of the host.
    """
    if not re.search(SSH_HOST, settings.host):
        raise InputError(
            f"{settings.host!a}: a host name must not contain spaces or shell characters, or "
            "begin with a dash",
            fix="define an alias in ~/.ssh/config: Host NAME, HostName ...",
        )
    if settings.ssh == "openssh":
        from hpcrun.remote.by_openssh import OpensshConnection

        return OpensshConnection(settings, ask, keeps=keeps)
    from hpcrun.remote.by_paramiko import ParamikoConnection

    return ParamikoConnection(settings, ask)
