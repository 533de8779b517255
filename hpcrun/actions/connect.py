"""Test the connection to a cluster behind ssh, and keep it open if ssh supports that."""

from __future__ import annotations

from hpcrun.context import Context, slurm_environment
from hpcrun.errors import InputError, OutOfReach
from hpcrun.remote import (
    NO_PROMPTS,
    OpensshConnection,
    Prompts,
    SshSettings,
    open_connection,
    quote,
    read_ssh_settings,
)


def connect_to(context: Context, ask: Prompts) -> tuple[bool, str]:
    """Log in to the cluster.

    Returns:
        Whether the connection stays open, and Slurm's version there.

    Raises:
        OutOfReach: The host does not respond, or the login failed.
    """
    settings = _settings(context)
    connection = open_connection(settings, ask)
    try:
        own = slurm_environment(context)
        words = "".join(f"export {name}={quote(value)}\n" for name, value in own.items())
        reply = connection.run(f"{words}sbatch --version")
    finally:
        connection.close()
    if reply.exit_code:
        lines = reply.stderr.strip().splitlines() or [f"exit code {reply.exit_code}"]
        raise OutOfReach(
            f"{settings.host} accepts the login, but sbatch does not run there: {lines[-1]}",
            fix=f"in {context.cluster_source} slurm_path: names the folder that has sbatch; with "
            "login_shell: true the profile of a login shell sets PATH",
        )
    return settings.ssh == "openssh", reply.stdout.decode(errors="replace").strip()


def disconnect_from(context: Context) -> bool:
    """Close the open connection; return True if there was one."""

    return OpensshConnection(_settings(context), NO_PROMPTS).disconnect()


def _settings(context: Context) -> SshSettings:
    if context.cluster.host is None:
        raise InputError(
            f"{context.cluster_source}: this profile has no host:; there is nothing to connect to",
            fix="hpcrun connect NAME, where the profile NAME has host:",
        )
    return read_ssh_settings(context.cluster)
