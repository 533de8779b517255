"""Sends metrics to MLflow: a server, or a database such as sqlite:///mlflow.db."""

from __future__ import annotations

import hashlib
import logging
import math
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import unquote

from hpcrun.errors import HpcrunError, InputError, OutOfReach
from hpcrun.trackers.tracker import MetricPoint, TrackedRun, check_package

# Limits of log_batch in MLflow's REST API.
_MAX_METRICS, _MAX_PARAMS, _MAX_TAGS = 1000, 100, 100
_MAX_VALUE_LENGTH, _MAX_KEY_LENGTH, _MAX_TAG_LENGTH = 6000, 250, 5000
_RUN_ID_TAG = "hpcrun.run_id"
# The user and password in a URL.
_CREDENTIALS = re.compile(r"//[^/@\s]*@")
# A password among the options of a database URL.
_PASSWORD_OPTION = re.compile(r"[?&](?:password|passwd|sslpassword)=([^&#]*)")
# The packages of database drivers whose module has another name.
_DRIVERS = {"MySQLdb": "mysqlclient", "psycopg2": "psycopg2-binary"}
# Characters that MLflow does not allow in the names of metrics, params and tags.
_REFUSED = re.compile(r"[^\w\-. :/]", re.ASCII)


class MlflowTracker:
    """See Tracker."""

    is_rewindable = False
    batch_size = _MAX_METRICS

    def __init__(self, environ: Mapping[str, str], project: str) -> None:
        check_package("mlflow", "mlflow")
        uri = environ.get("MLFLOW_TRACKING_URI", "")
        if not uri:
            raise InputError(
                "--to mlflow: MLFLOW_TRACKING_URI is not set",
                fix="export MLFLOW_TRACKING_URI=http://HOST:5000, or sqlite:////PATH/mlflow.db",
            )
        self._uri, self._project = uri, project
        self._client: Any = None
        self.destination = f"{re.sub(_CREDENTIALS, '//', uri)} {project}"
        # Usage reports of MLflow 3.2 and later.
        os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
        # By default MLflow repeats a request for minutes before it reports that a server is down.
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "30")
        os.environ["MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT"] = "true"
        # Without this, MLflow looks for git in the folder of the program, which is hpcrun.
        os.environ.setdefault("GIT_PYTHON_REFRESH", "quiet")

    def has_run(self, run: TrackedRun, tracker_id: str) -> bool:
        from mlflow.entities import LifecycleStage
        from mlflow.exceptions import MlflowException
        from mlflow.protos.databricks_pb2 import RESOURCE_DOES_NOT_EXIST, ErrorCode

        with self._errors():
            try:
                stage = self._connect().get_run(tracker_id).info.lifecycle_stage
            except MlflowException as error:
                if error.error_code != ErrorCode.Name(RESOURCE_DOES_NOT_EXIST):
                    raise
                return False
        return bool(stage == LifecycleStage.ACTIVE)

    def _connect(self) -> Any:
        from mlflow.store.db.db_types import DATABASE_ENGINES
        from mlflow.tracking.client import MlflowClient

        if self._client is None:
            if re.split("[:+]", self._uri)[0] in DATABASE_ENGINES:
                import mlflow.store.db.utils

                # By default, MLflow tries for 100 s to open a database.
                mlflow.store.db.utils.MAX_RETRY_COUNT = 3
                # The errors are raised, too; these records have a traceback.
                logging.getLogger(mlflow.store.db.utils.__name__).setLevel(logging.CRITICAL)
            self._client = MlflowClient(tracking_uri=self._uri)
        return self._client

    def open(self, run: TrackedRun, tracker_id: str) -> str:
        from mlflow.entities import Param, RunTag

        with self._errors():
            self._connect()
            self._id = tracker_id or self._find_or_create(run)
            if not tracker_id:
                params = [
                    Param(_valid_name(key), value[:_MAX_VALUE_LENGTH])
                    for key, value in run.config.items()
                ]
                for start in range(0, len(params), _MAX_PARAMS):
                    part = params[start : start + _MAX_PARAMS]
                    self._client.log_batch(self._id, params=part)
            tags = [
                RunTag(f"hpcrun.{_valid_name(key)}", value[:_MAX_TAG_LENGTH])
                for key, value in run.tags.items()
            ]
            self._client.log_batch(self._id, tags=tags[:_MAX_TAGS])
            self._client.update_run(self._id, status="RUNNING")
        return self._id

    def _find_or_create(self, run: TrackedRun) -> str:
        """Find the run that an interrupted or another hpcrun has created, or create it."""
        found = self._client.get_experiment_by_name(self._project)
        experiment = found.experiment_id if found else self._client.create_experiment(self._project)
        runs = self._client.search_runs([experiment], f"tags.`{_RUN_ID_TAG}` = '{run.run_id}'")
        if runs:
            return str(runs[0].info.run_id)
        tags = {
            _RUN_ID_TAG: run.run_id,
            "mlflow.user": run.user,
            "mlflow.note.content": run.notes,
            "mlflow.source.name": run.tags.get("command", "hpcrun"),
            "mlflow.source.type": "JOB",
        }
        if commit := run.tags.get("git_commit"):
            tags["mlflow.source.git.commit"] = commit
        if run.group:
            tags["hpcrun.sweep"] = run.group
        created = self._client.create_run(
            experiment, start_time=int(run.started_at * 1000), tags=tags, run_name=run.name
        )
        return str(created.info.run_id)

    def send(self, points: Sequence[MetricPoint], since: int | None) -> None:
        from mlflow.entities import Metric

        names = {name: _valid_name(name) for name in {point.name for point in points}}
        metrics = [
            Metric(names[point.name], point.value, int(point.at * 1000), point.step)
            for point in points
        ]
        with self._errors():
            self._client.log_batch(self._id, metrics=metrics)

    def close(self, state: str, ended_at: float | None) -> str:
        words = {"COMPLETED": "FINISHED", "CANCELLED": "KILLED"}
        if state:
            end = None if ended_at is None else math.floor(ended_at * 1000)
            with self._errors():
                self._client.set_terminated(self._id, words.get(state, "FAILED"), end)
        if not self._uri.startswith(("http://", "https://")):
            return f"MLflow run {self._id} in experiment {self._project}"
        with self._errors():
            experiment = self._client.get_run(self._id).info.experiment_id
        place = _CREDENTIALS.sub("//", self._uri).rstrip("/")
        return f"{place}/#/experiments/{experiment}/runs/{self._id}"

    @contextmanager
    def _errors(self) -> Iterator[None]:
        from mlflow.exceptions import MlflowException

        try:
            yield
        except MlflowException as error:
            code: int = error.get_http_status_code()
            if 400 <= code < 500 and code not in (408, 429):
                raise HpcrunError(f"MLflow refused the request: {self._describe(error)}") from error
            raise OutOfReach(f"MLflow: {self._describe(error)}") from error
        except ImportError as error:
            package = _DRIVERS.get(error.name or "", error.name or "")
            raise InputError(
                f"--to mlflow: the database in MLFLOW_TRACKING_URI: {self._describe(error)}",
                fix=f"{sys.executable} -m pip install {package}" if package else "",
            ) from error
        except Exception as error:
            # SQLAlchemy is a requirement only of databases.
            exc = sys.modules.get("sqlalchemy.exc")
            kinds = (
                (OSError, ValueError) if exc is None else (OSError, ValueError, exc.SQLAlchemyError)
            )
            if not isinstance(error, kinds):
                raise
            is_outage = exc is not None and isinstance(error, exc.OperationalError)
            kind = OutOfReach if is_outage else HpcrunError
            raise kind(f"MLflow: {self._describe(error)}") from error

    def _describe(self, error: Exception) -> str:
        """Return the first line of an error without passwords."""
        text = str(error)
        for password in _find_passwords(self._uri):
            text = text.replace(password, "***")
        text = re.sub(_CREDENTIALS, "//", text).strip()
        return (text.splitlines() or [type(error).__name__])[0][:300]


def _find_passwords(uri: str) -> list[str]:
    """Return the passwords in a URI, as written and decoded.

    >>> _find_passwords("postgresql://ada:s/e%40c@db/x?password=k")
    ['s/e%40c', 's/e@c', 'k', 'k']
    >>> _find_passwords("sqlite:////a@b:c/mlflow.db")
    []
    """
    if uri.startswith("sqlite:"):
        return []
    user, _, _ = uri.partition("://")[2].rpartition("@")
    found = [user.partition(":")[2], *_PASSWORD_OPTION.findall(uri)]
    return [form for each in found if each for form in (each, unquote(each))]


def _valid_name(name: str) -> str:
    """Replace characters that MLflow refuses; a digest of the name keeps such names distinct.

    >>> _valid_name("val/acc"), _valid_name("args.--lr")
    ('val/acc', 'args.--lr')
    >>> _valid_name("val/acc@5"), _valid_name("val/acc#5")
    ('val/acc_5 0cdb2146', 'val/acc_5 3c3c033f')
    """
    # MLflow also refuses paths that are not canonical, such as //a and a/../b.
    parts = (part for part in _REFUSED.sub("_", name).split("/") if part not in ("", ".", ".."))
    valid = "/".join(parts)[:_MAX_KEY_LENGTH]
    if valid == name and name:
        return name
    digest = hashlib.sha256(name.encode("utf-8", "surrogateescape")).hexdigest()[:8]
    return f"{valid[: _MAX_KEY_LENGTH - 9] or '_'} {digest}"
