"""The notifications of a job: its settings, those of the profile and of the user, and secrets."""

from __future__ import annotations

import re
import time
from datetime import datetime
from pathlib import Path
from typing import Any, cast

import pytest

from hpcrun.actions.notify_sender import _is_news
from hpcrun.actions.notify_settings import plan_notify, resolve_target
from hpcrun.context import load_context
from hpcrun.errors import InputError, SpecError
from hpcrun.jobside.channels import KINDS
from hpcrun.jobside.events import EVENTS, parse_condition
from hpcrun.runs.layout import RunFolder, SweepFolder
from hpcrun.runs.records import CachedRow, CachedState, CachedSweep, History, cache_record
from hpcrun.runs.status import JobStatus
from hpcrun.runs.verdict import Verdict
from hpcrun.slurm.jobs import SlurmJob
from hpcrun.spec.check import describe_struct, unwrap
from hpcrun.spec.job import Notify
from hpcrun.spec.load import load_cluster

URL = "https://hooks.slack.com/services/T0/B0/abcdef"


def test_job_precedes_profile_and_profile_precedes_user(tmp_path: Path) -> None:
    environ = {"HOME": str(tmp_path), "HOOK": URL}
    folder = tmp_path / ".config" / "hpcrun"
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text("notify: {on: [nan], to: [slack: $HOOK], per_hour: 3}\n")
    (tmp_path / "hpcrun.yaml").write_text("notify: {on: [failed]}\n")
    context = load_context(environ, tmp_path)
    plan, notes = plan_notify(context, Notify())
    assert plan is not None and notes == []
    assert (plan.on, plan.to, plan.per_hour) == (["failed"], [("slack", "$HOOK")], 3)
    plan, _ = plan_notify(context, Notify(on=["done"], to=["mail", "ntfy://runs"]))
    assert plan is not None
    assert (plan.on, plan.to) == (["done"], [("mail", ""), ("ntfy", "runs")])
    assert plan_notify(context, Notify(to=[])) == (None, [])


def test_url_comes_from_a_variable_or_a_file_of_the_user_only(tmp_path: Path) -> None:
    environ = {"HOME": str(tmp_path), "HOOK": URL}
    file = tmp_path / "slack.url"
    file.write_text(f"{URL}\n")
    with pytest.raises(InputError, match="can be read by others"):
        resolve_target(environ, "slack", "~/slack.url")
    file.chmod(0o600)
    assert resolve_target(environ, "slack", "~/slack.url") == URL
    assert resolve_target(environ, "slack", "$HOOK") == URL
    for target, message in (("$NONE", "NONE is not set"), ("~/none.url", "No such file")):
        with pytest.raises(InputError, match=message):
            resolve_target(environ, "slack", target)
    file.write_text("no url\n")
    with pytest.raises(InputError) as caught:
        resolve_target(environ, "slack", "~/slack.url")
    assert "does not contain a URL" in caught.value.message and "no url" not in str(caught.value)


def test_topic_and_address_of_a_variable_are_no_secrets(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("-----BEGIN KEY-----\nabc\n")
    file.chmod(0o600)
    environ = {"HOME": str(tmp_path), "HF_TOKEN": "hf_abc", "TOPIC": "runs", "WORDS": "a b"}
    assert resolve_target(environ, "ntfy", "$TOPIC") == "runs"
    assert resolve_target(environ | {"TO": "ada@example.org"}, "mail", "$TO") == "ada@example.org"
    assert resolve_target(environ, "mail", "") == ""
    for kind, target in (
        *(("ntfy", "$HF_TOKEN"), ("mail", "$HF_TOKEN"), ("ntfy", "$WORDS"), ("ntfy", "~/key")),
        *(("mail", "$TOPIC"), ("apprise", "$HF_TOKEN")),
    ):
        with pytest.raises(InputError) as caught:
            resolve_target(environ, kind, target)
        assert "hf_abc" not in str(caught.value) and "BEGIN" not in str(caught.value)


def test_url_of_a_webhook_is_refused_in_a_file_that_is_shared() -> None:
    with pytest.raises(SpecError) as caught:
        load_cluster(f"notify: {{to: [slack: {URL}]}}", source="hpcrun.yaml")
    assert "the URL is a secret" in str(caught.value) and "abcdef" not in str(caught.value)


def test_keys_accept_the_events_and_channels_that_the_job_knows() -> None:
    fields = {field.encode_name: field for field in describe_struct(Notify).fields}
    item: Any = unwrap(cast(Any, unwrap(fields["on"].type)[0]).item_type)[0]
    for word in (*EVENTS, "loss < 2.0", "step>=1e3", "time_left <= 90m"):
        assert re.fullmatch(item.pattern, word), word
        assert word in EVENTS or parse_condition(word) is not None, word
    for word in ("time_left < 3", "loss < 2h", "lost", "loss < x"):
        assert not re.fullmatch(item.pattern, word) and parse_condition(word) is None, word
    assert len(KINDS) == 8


def test_end_of_a_long_run_is_news_however_long_ago_it_was_submitted(tmp_path: Path) -> None:
    run, sweep, now = RunFolder(tmp_path), SweepFolder(tmp_path), time.time()
    run.notify.write_text("{}")
    long_ago = now - 10 * 86400

    def is_news(**more: Any) -> bool:
        failed = Verdict(state="NODE_FAIL", final=True)
        known: dict[str, Any] = {"history": History(run_id="x"), "submitted_at": long_ago, **more}
        return _is_news(JobStatus(verdict=failed, **known))

    def cached(ended_at: float) -> History:
        unknown: dict[str, Any] = dict.fromkeys(("elapsed", "step", "loss", "log"))
        row = CachedRow(run_id="x", stamp=0, ended_at=ended_at, **unknown)
        state = CachedState(state="NODE_FAIL", reason="", attempts=1, kept=row)
        return History(run_id="x", seen=state)

    def ended(at: float) -> SlurmJob:
        end = datetime.fromtimestamp(at).isoformat(timespec="seconds")
        return SlurmJob(job_id="1", source="sacct", state="NODE_FAIL", end=end)

    assert is_news(run=run)  # nothing is known about the end
    assert is_news(run=run, job=ended(now - 60)) and not is_news(run=run, job=ended(long_ago))
    assert is_news(run=run, history=cached(now - 60))
    assert not is_news(run=run, history=cached(long_ago))
    assert is_news(sweep=sweep)
    for at in (now - 60, long_ago):
        cache_record(sweep.seen, CachedSweep(ends={}, ended_at=at))
        assert is_news(sweep=sweep) == (at != long_ago)
