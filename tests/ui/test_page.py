"""The page of hpcrun ui in a real Chromium, with the server as its own process."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

import pytest

from hpcrun.context import load_context
from hpcrun.ui.board import Board, _PublishedRow
from hpcrun.ui.server import redirecting_file
from tests.cli.calling import Caller
from tests.cli.status_runs import answers
from tests.curves.report.browser import Browser, Page
from tests.slurm_answers import show_job, squeue_row
from tests.ui.project import (
    FAILED,
    FINISHED,
    HOSTILE,
    RUNNING,
    SWEEP,
    fill,
    queries,
    served,
    training_log,
)
from tests.waiting import PATIENCE, until

pytestmark = pytest.mark.slow

ROWS = "[...document.querySelectorAll('#runs tbody tr')]"
PLOT = "document.querySelector('.panel .plot')"


@pytest.fixture(scope="module")
def caller(tmp_path_factory: pytest.TempPathFactory) -> Caller:
    folder = tmp_path_factory.mktemp("ui")
    (folder / "home").mkdir()
    environ = {"HOME": str(folder / "home"), "USER": "me", "LANG": "C.UTF-8"}
    made = Caller(folder, environ)
    fill(made, 1000)
    made.write("train.log", training_log(50))
    return made


@pytest.fixture(scope="module")
def address(caller: Caller) -> Iterator[str]:
    """The address of the page, without the part after #."""
    with served(caller, "train.log") as found:
        yield found.partition("#")[0]


class Opening:
    """Opens views, and checks that they cause no errors and run no foreign script."""

    def __init__(self, browser: Browser, address: str) -> None:
        self._browser, self._address = browser, address
        self.pages: list[Page] = []

    def __call__(self, view: str, ready: str, *, dark: bool = False) -> Page:
        page = Page(self._browser, f"{self._address}#/{view}", dark=dark)
        self.pages.append(page)
        page.value("window.alert = () => { window.harmed = true; }")
        page.wait_for(ready)
        return page


@pytest.fixture
def opened(browser: Browser, address: str) -> Iterator[Opening]:
    opening = Opening(browser, address)
    yield opening
    for page in opening.pages:
        assert page.problems() == []
        assert page.value("window.harmed") is None
        assert page.value("document.querySelectorAll('img').length") == 0
        assert {url.partition("://")[2].partition(":")[0] for url in page.requested()} == {
            "127.0.0.1"
        }
        page.close()


def fill_in(page: Page, selector: str, text: str, event: str = "new Event('input')") -> None:
    page.value(
        f"(e => {{ e.value = {text!r}; e.dispatchEvent({event}); }})"
        f"(document.querySelector({selector!r}))"
    )


def test_table_of_1000_runs_filters_and_sorts(opened: Opening, caller: Caller) -> None:
    begun = time.monotonic()
    page = opened("", f"{ROWS}.length > 100")
    first_paint = page.value("performance.getEntriesByName('first-contentful-paint')[0].startTime")
    assert first_paint < 5000  # below 300 ms on an idle machine
    page.wait_for("document.querySelector('.tools .quiet').textContent === '1,006 runs'")
    assert page.value(f"{ROWS}.length") == 200  # the rest is shown on demand
    fill_in(page, "#search", "old7-0007")
    page.wait_for(f"{ROWS}.length === 1")
    fill_in(page, "#search", "")
    fill_in(page, "#states", "failed", "new Event('change')")
    page.wait_for(f"{ROWS}.length === 1 && {ROWS}[0].textContent.includes('failed')")
    fill_in(page, "#states", "all", "new Event('change')")
    for _ in range(2):
        page.value("document.querySelector('[data-column=step] button').click()")
    assert (
        page.value("document.querySelector('[data-column=step]').getAttribute('aria-sort')")
        == "ascending"
    )
    page.wait_for(f"{ROWS}[0].textContent.includes('train')")
    assert page.value("document.documentElement.scrollWidth <= innerWidth")
    # As hpcrun status --watch: without news at most twice a minute.
    assert queries(caller) <= 3 + (time.monotonic() - begun) / 15


def test_run_shows_its_state_cause_curve_and_log(opened: Opening) -> None:
    page = opened(f"run/{FAILED}", f"!!{PLOT}?.uplot")
    head = page.value("document.querySelector('h1').textContent")
    assert head == "trainfailed"
    page.wait_for("document.querySelector('.warnings')?.textContent.includes('GPU memory')")
    assert "Fix: " in page.value("document.querySelector('.warnings').textContent")
    lines = page.value(f"{PLOT}.lines.map(line => [line.label, line.y.length])")
    assert lines == [["Training loss", 300], ["Evaluation loss", 3]]
    page.value(
        "[...document.querySelectorAll('.tabs a')].find(a => a.textContent === 'Log').click()"
    )
    page.wait_for("document.querySelector('.log')?.textContent.includes('OutOfMemoryError')")
    # Colours and hostile text: escape sequences are classes, markup is text.
    page.value("document.getElementById('log-begin').click()")
    page.wait_for("document.querySelector('.log .a32')?.textContent === 'epoch 1'")
    assert HOSTILE in page.value("document.querySelector('.log').textContent")
    enter = "new KeyboardEvent('keydown', {key: 'Enter'})"
    fill_in(page, "#log-search", "step=200 ", enter)
    page.wait_for("document.querySelector('.log mark.found')?.textContent === 'step=200 '")
    fill_in(page, "#log-search", "nothing of this kind", enter)
    page.wait_for("document.querySelector('.tools .quiet').textContent === 'not found'")


def test_use_of_gpus_is_drawn_over_time(opened: Opening) -> None:
    page = opened(f"run/{RUNNING}/use", f"!!{PLOT}?.uplot")
    names = page.value(f"{PLOT}.lines.map(line => line.label)")
    assert names == ["n1 GPU 0", "n1 GPU 1"]
    idle = page.value(f"Math.max(...{PLOT}.lines[1].y)")
    assert idle == 0 and page.value(f"{PLOT}.lines[0].y.every(value => value > 50)")
    titles = page.value("[...document.querySelectorAll('.panel h3')].map(e => e.textContent)")
    assert titles[:3] == ["GPU utilization %", "GPU memory GiB", "GPU power W"]
    assert titles[3:] == ["CPU cores in use by the job", "Memory of the job GiB"]


def test_selected_runs_share_a_chart(opened: Opening) -> None:
    page = opened("", f"{ROWS}.length > 100")
    for key in (RUNNING, FINISHED):
        page.value(
            f"{ROWS}.find(tr => tr.querySelector('a')?.hash.includes({key!r}))"
            ".querySelector('input').click()"
        )
    page.wait_for("document.getElementById('show-curves').textContent === 'curves of 2 selected'")
    page.value("document.getElementById('show-curves').click()")
    page.wait_for(f"!!{PLOT}?.uplot")
    assert page.value(f"{PLOT}.lines.map(line => line.label)") == ["train (15)", "train (11)"]
    assert page.value("document.querySelectorAll('#runs-table tbody tr').length") == 2
    page.value("document.querySelector('#runs-table input').click()")
    page.wait_for(f"{PLOT}.lines.length === 1")


def test_sweep_has_parallel_coordinates_and_its_best_run_first(
    opened: Opening, caller: Caller
) -> None:
    page = opened(f"sweep/{SWEEP}", "!!document.querySelector('.sweep svg')")
    assert page.value("document.querySelectorAll('.sweep svg path').length") == 6
    names = page.value("[...document.querySelectorAll('.sweep .name')].map(e => e.textContent)")
    assert names == ["lr", "width", "loss"]
    best = page.value("document.querySelector('#sweep-runs tbody tr').textContent")
    assert best.startswith("40_0completed0.1256")
    # A sweep with a metric is ranked by it, as in hpcrun status.
    for index in range(6):
        run = caller.runs / f"20261121-000000-lr.{index}-7k3q"
        search = {"method": "grid", "seed": 0, "metric": "eval_acc", "goal": "maximize"}
        search |= {"trials": 6, "before": "", "after": "", "pythons": [], "space": {}}
        (run / "search.json").write_text(json.dumps(search))
        attempt = run / "attempts/0"
        points = {"metric": "eval_acc", "points": [[100, 0.9], [200, index / 8]]}
        (attempt / "metric-end.json").write_text(json.dumps(points))
        end = json.loads((attempt / "end.json").read_text())
        (attempt / "end.json").write_text(json.dumps({**end, "why": "done"}))
    page = opened(f"sweep/{SWEEP}", "!!document.querySelector('.sweep svg')")
    names = page.value("[...document.querySelectorAll('.sweep .name')].map(e => e.textContent)")
    assert names == ["lr", "width", "eval_acc"]
    order = page.value(
        "[...document.querySelectorAll('#sweep-runs tbody tr')].map(e => e.textContent)"
    )
    assert [row[:4] for row in order] == [f"40_{index}" for index in (5, 4, 3, 2, 1, 0)]
    assert order[0].startswith("40_5completed0.0015122000.625"), order[0]


def test_log_file_is_followed(opened: Opening, caller: Caller) -> None:
    log = (caller.project / "train.log").resolve()
    page = opened(f"run/{quote(f'file:{log}', safe='')}", f"!!{PLOT}?.uplot")
    assert page.value(f"{PLOT}.lines[0].y.length") == 50
    with log.open("a") as file:
        file.write("step=51 loss=1.25\n")
    page.wait_for(f"{PLOT}.lines[0].y.at(-1) === 1.25")


def test_views_fit_a_phone_and_follow_the_theme(opened: Opening) -> None:
    ready = {
        "": f"{ROWS}.length > 100",
        f"run/{FAILED}": f"!!{PLOT}?.uplot",
        f"run/{FAILED}/log": "document.querySelector('.log')?.textContent.includes('step=')",
        f"run/{FAILED}/attempts": "document.querySelectorAll('table.settings tbody tr').length > 0"
        " && !document.querySelector('table.settings').textContent.includes('Invalid')",
        f"sweep/{SWEEP}": "!!document.querySelector('.sweep svg')",
    }
    grounds = set()
    for dark in (False, True):
        page = opened("", f"{ROWS}.length > 100", dark=dark)
        grounds.add(page.value("getComputedStyle(document.body).backgroundColor"))
        page.resize(390, 800)
        for view, expression in ready.items() if dark else ():
            page.value(f"location.hash = '#/{view}'")
            # A chart below the window is drawn when it is scrolled to.
            page.wait_for(f"(document.querySelector('.plot')?.scrollIntoView(), {expression})", 60)
            assert page.value("document.documentElement.scrollWidth <= innerWidth"), view
    assert len(grounds) == 2


def test_page_works_with_keyboard_and_screen_reader(opened: Opening) -> None:
    page = opened("", f"{ROWS}.length > 100")
    page.value("document.dispatchEvent(new KeyboardEvent('keydown', {key: '/', bubbles: true}))")
    assert page.value("document.activeElement.id") == "search"
    for view in ("", f"run/{RUNNING}", f"run/{RUNNING}/log"):
        page.value(f"location.hash = '#/{view}'")
        page.wait_for("document.querySelectorAll('#runs tr, .plot canvas, .log pre').length > 0")
        nodes = page.call("Accessibility.getFullAXTree")["nodes"]
        for node in nodes:
            role = node.get("role", {}).get("value")
            if not node["ignored"] and role in (
                "button",
                "link",
                "checkbox",
                "searchbox",
                "slider",
            ):
                assert node["name"]["value"], node
    assert page.value("document.querySelectorAll('[aria-current=page]').length") == 1


def ask(
    address: str, path: str = "", *, method: str = "GET", **headers: str
) -> tuple[int, str, dict[str, str]]:
    """Send a request to the server; return its status, text and headers."""
    host, _, rest = address.removeprefix("http://").partition("/")
    connection = http.client.HTTPConnection(host, timeout=PATIENCE)
    connection.putrequest(method, f"/{rest}{path}", skip_host="Host" in headers)
    for name, value in headers.items():
        connection.putheader(name.replace("_", "-"), value)
    connection.endheaders()
    with closing(connection):
        answer = connection.getresponse()
        return answer.status, answer.read().decode(), dict(answer.getheaders())


def test_requests_without_token_or_from_other_sites_are_refused(address: str) -> None:
    status, text, headers = ask(address)
    assert status == 200 and "<script>" not in text and "style=" not in text
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy and "script-src 'self'" in policy
    assert "unsafe" not in policy and headers["referrer-policy"] == "no-referrer"
    base = "/".join(address.split("/")[:3]) + "/"
    port = base.rpartition(":")[2].strip("/")
    for refused in (base, base + "x" * 32 + "/", base + "x" * 32 + "/api/rows"):
        status, text, _ = ask(refused)
        assert status == 404 and "train" not in text
    for host in ("evil.example", "127.0.0.1.evil.example", "localhost:1@evil.example", ""):
        assert ask(address, "api/rows", Host=f"{host}:{port}")[0] == 421
    assert ask(address, "api/rows", Origin="http://evil.example")[0] == 403
    assert ask(address, "api/rows", Sec_Fetch_Site="cross-site")[0] == 403
    assert ask(address, "api/rows", Origin=f"http://127.0.0.1:{port}")[0] == 200
    assert ask(address, "static/..%2f..%2fboard.py")[0] == 404
    assert ask(address, "static/board.py")[0] == 404


def test_unknown_runs_and_logs_are_errors_with_a_message(address: str, caller: Caller) -> None:
    caller.write("other.log", training_log(5))
    for path in (
        "api/detail?key=nothing",
        f"api/log?key={RUNNING}&file=../plan.json",
        "api/log?key=/etc/passwd",
        "api/curves?key=/etc/passwd",
        "api/curves?key=other.log",
        f"api/detail?key={quote('20261120-x/../../..', safe='')}",
        "api/curves",
    ):
        status, text, _ = ask(address, path)
        assert status == 400 and json.loads(text)["error"], (path, text)


def test_file_of_open_leads_to_the_page_and_is_private(
    browser: Browser, address: str, tmp_path: Path
) -> None:
    with redirecting_file(tmp_path / "ui", f"{address}#/run/{RUNNING}") as file:
        assert file.stat().st_mode & 0o777 == 0o600
        page = Page(browser, file.as_uri(), dark=False)
        page.wait_for(f"location.href === {json.dumps(f'{address}#/run/{RUNNING}')}")
        page.wait_for("document.querySelector('.panel .plot')")
        page.close()
    assert list((tmp_path / "ui").iterdir()) == []
    foreign = {"Sec_Fetch_Site": "cross-site"}
    for path, dest in (("api/rows", "document"), ("", "iframe"), ("", "empty")):
        assert ask(address, path, **foreign, Sec_Fetch_Dest=dest)[0] == 403


def test_any_error_while_following_runs_is_shown(
    caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    board = Board(load_context(caller.environ, caller.project))
    monkeypatch.setattr(board._monitor, "poll", lambda: 1 / 0)
    board.start()
    board.want()
    try:
        assert until(lambda: board.news(0)["trouble"]) == (
            "internal error: ZeroDivisionError: division by zero"
        )
    finally:
        board.close()


def test_slurm_is_not_queried_while_no_page_is_open(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    caller = Caller(tmp_path, {"HOME": str(tmp_path / "home"), "USER": "me", "LANG": "C.UTF-8"})
    fill(caller, 2)
    with served(caller) as address:
        time.sleep(0.5)
        assert queries(caller) == 0
        assert ask(address, "api/rows")[0] == 200
        assert queries(caller) == 0  # only the stream of events wants news


def test_actions_are_confirmed_and_need_the_option(
    browser: Browser, address: str, tmp_path: Path
) -> None:
    page = Page(browser, f"{address}#/run/{RUNNING}", dark=False)
    page.wait_for(f"!!{PLOT}?.uplot")
    assert page.value("document.querySelectorAll('#cancel').length") == 0
    post = "fetch('api/act', {method: 'POST', body: JSON.stringify({verb: 'cancel', key: 'x'})})"
    assert page.value(f"{post}.then(answer => answer.status)") == 404
    page.close()
    (tmp_path / "home").mkdir()
    caller = Caller(tmp_path, {"HOME": str(tmp_path / "home"), "USER": "me", "LANG": "C.UTF-8"})
    fill(caller, 2)
    calls = answers(caller.tools, "scancel")
    with served(caller, "--actions", "15") as own:
        page = Page(browser, own, dark=False)
        # The first view of a new server waits for Slurm's answer.
        page.wait_for("!!document.getElementById('cancel')")
        assert page.value("document.querySelector('h1 .pill').textContent") == "running"
        page.value("document.getElementById('cancel').click()")
        assert page.value("document.querySelector('dialog').open") and not calls.exists()
        page.value("document.getElementById('confirm').click()")
        page.wait_for("document.querySelector('dialog p').textContent === 'cancelled'")
        assert "15" in calls.read_text()
        base = own.partition("#")[0]
        for origin in ({}, {"Origin": "http://evil.example"}):
            assert ask(base, "api/act", method="POST", **origin)[0] == 403
        page.close()


def test_job_of_another_program_has_a_state_a_curve_and_a_log(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    caller = Caller(tmp_path, {"HOME": str(tmp_path / "home"), "USER": "me", "LANG": "C.UTF-8"})
    out = tmp_path / "77.out"
    out.write_text("step=1 loss=2.0\nstep=2 loss=1.5\n")
    rows = squeue_row("77", "RUNNING", Z=str(tmp_path), j="other")
    answers(caller.tools, "squeue", rest=rows + squeue_row("78", "PENDING", j="later"))
    answers(caller.tools, "sacct")
    shown = show_job("77", StdOut=str(out), StdErr=str(out), Power="")
    answers(caller.tools, "scontrol", ("77", shown))
    with served(caller, "77", "78") as address:
        base = address.partition("#")[0]
        assert address.endswith("#/run/77")
        state = until(lambda: list_states(base), "the states")
        assert state == {"77": "RUNNING", "78": "PENDING"}
        detail = json.loads(ask(base, "api/detail?key=77")[1])
        assert [file["name"] for file in detail["files"]] == [str(out)]
        (curve,) = json.loads(ask(base, "api/curves?key=77")[1])["runs"]
        assert curve["metrics"]["loss"]["values"] == [2.0, 1.5]
        log = json.loads(ask(base, f"api/log?key=77&file={quote(str(out))}&at=0")[1])
        assert log["lines"] == ["step=1 loss=2.0", "step=2 loss=1.5"]
        pending = json.loads(ask(base, "api/detail?key=78")[1])
        assert pending["files"] == [] and pending["runs"][0]["state"] == "PENDING"


def list_states(base: str) -> dict[str, str]:
    """Return the states of all rows; a request for details makes the server ask Slurm."""
    ask(base, "api/detail?key=77")
    rows = json.loads(ask(base, "api/rows")[1])["rows"]
    return {row["key"]: row["state"] for row in rows}


def test_a_running_jobs_time_alone_is_sent_once_a_minute() -> None:
    published = _PublishedRow(3, 100.0, {"key": "a", "step": 5, "elapsed_seconds": 40})
    later = {"key": "a", "step": 5, "elapsed_seconds": 42}
    assert published.is_current(later, 102.0)
    assert not published.is_current(later, 161.0)
    assert not published.is_current({**later, "step": 6}, 102.0)
    assert not published.is_current({**later, "why": "out of memory"}, 102.0)


def test_news_has_only_changed_rows_and_no_order_that_is_known(caller: Caller) -> None:
    board = Board(load_context(caller.environ, caller.project), ["train.log"])
    board._poll()
    board._publish()
    first = board.news(0)
    assert len(first["rows"]) == len(first["keys"]) > 1000
    board._publish()
    again = board.news(first["version"])
    assert (again["version"], again["rows"], again["keys"]) == (first["version"], [], None)
