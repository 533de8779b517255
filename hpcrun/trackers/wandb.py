"""Sends metrics to W&B (Weights & Biases), or to its offline directories."""

from __future__ import annotations

import contextlib
import netrc
import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from hpcrun.errors import HpcrunError, InputError, OutOfReach
from hpcrun.trackers.tracker import SYSTEM_PREFIX, MetricPoint, TrackedRun, check_package

# The axes of the charts: W&B's own step counts calls and cannot go back, as a resumed run does.
_STEP, _SECONDS = "train/global_step", f"{SYSTEM_PREFIX}seconds"
_DEFAULT_URL = "https://api.wandb.ai"


class WandbTracker:
    """See Tracker."""

    is_rewindable = False
    batch_size = 1000

    def __init__(self, environ: Mapping[str, str], folder: Path, project: str) -> None:
        check_package("wandb", "wandb")
        self._folder, self._project = folder, project
        mode = environ.get("WANDB_MODE") or "online"
        if mode not in ("online", "offline"):
            raise InputError(
                f"--to wandb: WANDB_MODE is {mode}", fix="export WANDB_MODE=online, or offline"
            )
        self._is_offline = mode == "offline"
        if not self._is_offline:
            _require_login(environ)
        place = folder if self._is_offline else environ.get("WANDB_BASE_URL", _DEFAULT_URL)
        self.destination = f"{place} {environ.get('WANDB_ENTITY', '')} {project}"
        os.environ["WANDB_ERROR_REPORTING"] = "false"  # reports of crashes to W&B

    def has_run(self, run: TrackedRun, tracker_id: str) -> bool:
        return True  # W&B cannot create a deleted run again, and offline folders may be deleted

    def open(self, run: TrackedRun, tracker_id: str) -> str:
        import wandb

        # Without these settings W&B would record this machine and this process as those of the run.
        settings = wandb.Settings(
            console="off",
            disable_code=True,
            disable_git=True,
            disable_job_creation=True,
            host=run.tags.get("cluster", ""),
            save_code=False,
            silent=True,
            x_disable_machine_info=True,
            x_disable_meta=True,
            x_disable_stats=True,
            x_save_requirements=False,
        )
        with self._errors():
            self._run: Any = wandb.init(
                project=self._project,
                id=run.run_id,
                name=run.name,
                group=run.group or None,
                dir=str(self._folder),
                config={**run.config, "hpcrun": run.tags},
                tags=["hpcrun"],
                notes=run.notes,
                resume=None if self._is_offline else "allow",
                reinit="create_new",
                settings=settings,
            )
            self._run.define_metric("*", step_metric=_STEP)
            self._defined = {_STEP, _SECONDS}
        return run.run_id

    def send(self, points: Sequence[MetricPoint], since: int | None) -> None:
        rows: dict[tuple[str, int], dict[str, float]] = {}
        for point in points:
            axis = _SECONDS if point.name.startswith(SYSTEM_PREFIX) else _STEP
            if axis == _SECONDS and point.name not in self._defined:
                self._run.define_metric(point.name, step_metric=_SECONDS)
                self._defined.add(point.name)
            row = rows.setdefault((axis, point.step), {axis: point.step})
            row[point.name] = point.value
            row["_timestamp"] = max(row.get("_timestamp", 0.0), point.at)
        with self._errors():
            for row in rows.values():
                self._run.log(row)

    def close(self, state: str, ended_at: float | None) -> str:
        folder = Path(self._run.dir).parent
        # Each call has written a folder; wandb sync merges those that it gets at once.
        folders = f"{shlex.quote(str(folder.parent))}/offline-run-*-{self._run.id}"
        shown = f"wandb sync {folders}" if self._is_offline else self._run.url or str(folder)
        with self._errors():
            self._run.finish(exit_code=0 if state in ("", "COMPLETED") else 1)
        return str(shown)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        import wandb

        try:
            yield
        except wandb.errors.CommError as error:
            raise OutOfReach(f"W&B: {_first_line(error)}") from error
        except wandb.errors.Error as error:
            raise HpcrunError(f"W&B: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or ["no message"])[0][:300]


def _require_login(environ: Mapping[str, str]) -> None:
    """Raise InputError if wandb would prompt for an API key."""
    if environ.get("WANDB_API_KEY") or environ.get("WANDB_IDENTITY_TOKEN_FILE"):
        return
    host = urlsplit(environ.get("WANDB_BASE_URL", _DEFAULT_URL)).hostname or ""
    file = environ.get("NETRC") or str(Path(environ.get("HOME", "/")) / ".netrc")
    with contextlib.suppress(OSError, netrc.NetrcParseError):
        if netrc.netrc(file).authenticators(host):
            return
    raise InputError(
        f"--to wandb: not logged in to {host}",
        fix="wandb login, or export WANDB_API_KEY; export WANDB_MODE=offline writes files for "
        "wandb sync",
    )
