"""The notifications of a job: its settings, those of the profile and of the user, and secrets."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from hpcrun.assets import config_dir, home_dir
from hpcrun.context import Context, read_text
from hpcrun.errors import InputError
from hpcrun.jobside import PER_HOUR, is_http_url
from hpcrun.ownership import is_own, is_trusted
from hpcrun.plan import NotifyPlan
from hpcrun.runs import write_file
from hpcrun.secrets import is_secret_name
from hpcrun.spec import Notify, UserConfig, load_user_config

# The events of a job that names channels only.
_DEFAULT_EVENTS = ["failed", "stalled", "done"]
# Channels whose target is the URL itself.
_URL_KINDS = ("slack", "discord", "teams", "webhook", "apprise")
# A topic of ntfy with its server, and a mail address, as the value of a variable or file.
_TOPIC = re.compile(r"([!-~]*/)?[A-Za-z0-9_-]{1,64}(\?[!-~]*)?")
_ADDRESS = re.compile(r"[A-Za-z0-9._%+='-]+@[A-Za-z0-9.-]+")


def load_config(environ: Mapping[str, str]) -> UserConfig:
    """Load the user's settings for all jobs. Raises InputError."""
    path = config_dir(environ) / "config.yaml"
    return load_user_config(read_text(path), source=str(path)) if path.is_file() else UserConfig()


def plan_notify(context: Context, own: Notify) -> tuple[NotifyPlan | None, list[str]]:
    """Decide the notifications of a job, which precedes the profile, and that the user's settings.

    Returns:
        The decision, None if there is no channel; and notes on channels that cannot be used.
    """
    layers = (own, context.cluster.notify, load_config(context.environ).notify)
    to = next((layer.to for layer in layers if layer.to is not None), [])
    if not to:
        return None, []
    plan = NotifyPlan(
        on=next((layer.on for layer in layers if layer.on is not None), _DEFAULT_EVENTS),
        to=[pair for word in to for pair in split_channel(word)],
        per_hour=next((layer.per_hour for layer in layers if layer.per_hour), PER_HOUR),
    )
    return plan, resolve_channels(context.environ, plan.to)[1]


def split_channel(word: str | Mapping[Any, str]) -> list[tuple[str, str]]:
    """Split a channel of a job file into kinds and targets.

    >>> split_channel("ntfy://runs"), split_channel("mail"), split_channel({"slack": "$URL"})
    ([('ntfy', 'runs')], [('mail', '')], [('slack', '$URL')])
    """
    if isinstance(word, str):
        kind, _, target = word.partition("://")
        return [(kind, target)]
    pairs = [(str(kind), target) for kind, target in word.items()]
    return [(kind, target.removeprefix("ntfy://")) for kind, target in pairs]


def resolve_channels(
    environ: Mapping[str, str], channels: Sequence[tuple[str, str]]
) -> tuple[list[tuple[str, str]], list[str]]:
    """Replace variables and files by the URLs in them; return notes on those that have none.

    A channel without a URL keeps its place with an empty target, so that the names of channels do
    not depend on the environment.
    """
    found, notes = [], []
    for kind, target in channels:
        try:
            found.append((kind, resolve_target(environ, kind, target)))
        except InputError as error:
            found.append((kind, ""))
            notes.append(f"notify: {error.message}: {error.fix}; until then nothing is sent there")
    return found, notes


def resolve_target(environ: Mapping[str, str], kind: str, target: str) -> str:
    """Return the URL that a target names, or the target itself.

    Raises:
        InputError: The target has no value, or the value is not that of such a channel. The message
            does not contain the value.
    """
    if kind not in (*_URL_KINDS, "ntfy", "mail"):
        return target
    url = target
    if target.startswith("$"):
        name = target.lstrip("$").strip("{}")
        if kind in ("ntfy", "mail") and is_secret_name(name):
            # A topic is part of a request's address, which servers record.
            raise InputError(
                f"{kind}: {name} is named like a secret", fix="use a variable with another name"
            )
        url = environ.get(name, "").strip()
        if not url:
            raise InputError(f"{kind}: {name} is not set", fix=f"export {name}=...")
    elif target.startswith(("~", "/")):
        path = Path(target.replace("~", home_dir(environ), 1))
        url = _read_secret_file(path, kind)
    if kind in _URL_KINDS[:-1] and not is_http_url(url):
        raise InputError(
            f"{kind}: {target} does not contain a URL", fix="it starts with https:// or http://"
        )
    if kind == "apprise" and url and "://" not in url:
        raise InputError(f"apprise: {target} does not contain a URL", fix="it is SERVICE://...")
    # Nothing else that a variable or file contains is sent to somebody's server.
    if kind == "ntfy" and url != target and not _TOPIC.fullmatch(url):
        raise InputError(
            f"ntfy: {target} does not contain a topic",
            fix="it is TOPIC, HOST/TOPIC or a URL; a topic has at most 64 letters, digits, _ and -",
        )
    if kind == "mail" and url != target and not _ADDRESS.fullmatch(url):
        raise InputError(
            f"mail: {target} does not contain a mail address", fix="as in ada@example.org"
        )
    return url


def list_project_channels(context: Context, own: Notify, job: Path | None) -> list[str]:
    """List what a test message runs and sends because an untrusted project asks for it.

    These are commands, and the values of variables and files; a project that contains the user's
    home is the user's own.

    Args:
        own: The settings of the job.
        job: The file of the job.
    """
    if own.to is not None:
        to, folder = own.to, job.parent if job is not None else context.project
    else:
        to, folder = context.cluster.notify.to or [], Path(context.cluster_source).parent
    is_users = Path(home_dir(context.environ)).resolve().is_relative_to(folder.resolve())
    is_users |= folder.resolve().is_relative_to(config_dir(context.environ).resolve())
    if is_users or is_trusted(folder):
        return []
    channels = [pair for word in to for pair in split_channel(word)]
    return [
        f"{kind}: {target}"
        for kind, target in channels
        if kind == "command" or target.startswith(("$", "~", "/"))
    ]


def _read_secret_file(path: Path, kind: str) -> str:
    try:
        info = path.stat()
        if not is_own(info) or info.st_mode & 0o077:
            raise InputError(f"{kind}: {path} can be read by others", fix=f"chmod 600 {path}")
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not text"
        raise InputError(f"{kind}: {path}: {reason}", fix="write the URL into it") from error


class Schedule(Struct, frozen=True, kw_only=True):
    """A call of ``hpcrun notify`` outside a login shell.

    Attributes:
        program: The command that calls hpcrun.
        folder: The project, whose profile applies.
        path: The PATH, on which Slurm's commands are.
    """

    program: list[str]
    folder: str
    path: str
    cluster: str | None = None

    @property
    def argv(self) -> list[str]:
        return [*self.program, "notify", *(["--cluster", self.cluster] if self.cluster else [])]

    def cron_line(self, every: int = 5) -> str:
        """Return a line for crontab.

        >>> Schedule(program=["/bin/hpcrun"], folder="/home/ada/lm", path="/usr/bin").cron_line()
        '*/5 * * * * cd /home/ada/lm && PATH=/usr/bin /bin/hpcrun notify >/dev/null 2>&1'
        """
        command = f"cd {shlex.quote(self.folder)} && PATH={shlex.quote(self.path)} "
        command += f"{shlex.join(self.argv)} >/dev/null 2>&1"
        return f"*/{every} * * * * " + command.replace("%", r"\%")

    def unit_texts(self) -> dict[str, str]:
        """Return a service and a timer for the user's systemd, by their names."""
        name = f"hpcrun-notify-{self.cluster}" if self.cluster else "hpcrun-notify"
        command = " ".join(_quote_for_systemd(word).replace("$", "$$") for word in self.argv)
        head = "[Unit]\nDescription=Notifications of hpcrun\n\n"
        service = f"[Service]\nType=oneshot\nWorkingDirectory={self.folder.replace('%', '%%')}\n"
        service += f"Environment={_quote_for_systemd(f'PATH={self.path}')}\nExecStart={command}\n"
        timer = "[Timer]\nOnBootSec=2min\nOnUnitActiveSec=2min\n\n"
        return {
            f"{name}.service": head + service,
            f"{name}.timer": f"{head}{timer}[Install]\nWantedBy=timers.target\n",
        }


def _quote_for_systemd(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("%", "%%")


def write_systemd_units(environ: Mapping[str, str], schedule: Schedule) -> list[Path]:
    """Write the units of a schedule to the user's directory; return their paths.

    Raises:
        HpcrunError: A file cannot be written.
    """
    base = environ.get("XDG_CONFIG_HOME") or f"{home_dir(environ)}/.config"
    folder = Path(base) / "systemd" / "user"
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in schedule.unit_texts().items():
        write_file(folder / name, text.encode())
    return [folder / name for name in schedule.unit_texts()]
