"""The verbs why, parse, compare, report and lint."""

from __future__ import annotations

import contextlib
import math
import re
import threading
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hpcrun.cli.options import (
    CLUSTER,
    DIR,
    FILE,
    RUN,
    RUN_OR_FILE,
    cluster_option,
    json_option,
    make_context,
    parse_filter,
)
from hpcrun.cli.output import drawing_display, emit_json, print_line
from hpcrun.errors import InputError

# Constants of glibc's malloc.h; its default threshold grows with freed blocks.
_M_MMAP_THRESHOLD, _LARGE = -3, 1 << 18

if TYPE_CHECKING:
    from hpcrun.context import Context
    from hpcrun.curves import ParsedRun
    from hpcrun.runs import RunFolder, SearchResult, SweepFolder


@click.command("why")
@click.argument("jobs", nargs=-1, metavar="[JOB | LOG...]", type=RUN_OR_FILE)
@cluster_option
@json_option
def why(jobs: tuple[str, ...], cluster: str | None, as_json: bool) -> int:
    """Explain in one sentence why a job failed, with the line that shows it and a fix.

    JOB is a run id, a sweep or any Slurm job id; the default is the newest run. LOGS are log files
    of any framework, "-" for stdin, or a folder. All LOGS are treated as logs of one job.

    The cause is the first failure that explains the others. If a log contains several launches, the
    last one is explained. Warnings in the log of a job that succeeded are not reported as a cause.

    For a run that has not failed, the numbers that show why it may be slow are listed: waiting for
    data, communication, ranks that lag behind, offloading, unused GPU memory.

    The exit code is 0 even if a cause is found.
    """
    from hpcrun.actions import explain_jobs, explain_speed
    from hpcrun.cli.output import output_display, print_lines
    from hpcrun.views import diagnosis_json, format_diagnosis

    where = make_context(cluster)
    answers = explain_jobs(where, jobs)
    slow = [explain_speed(where, each.working) if each.working else [] for each in answers]
    if as_json:
        runs = [
            {
                "source": each.source,
                **diagnosis_json(each.diagnosis),
                "warning": each.warning,
                "slow": texts,
            }
            for each, texts in zip(answers, slow, strict=True)
        ]
        emit_json({"runs": runs})
        return 0
    for each, texts in zip(answers, slow, strict=True):
        print_lines(format_diagnosis(each.source, each.diagnosis, each.state, output_display()))
        if each.warning:
            print_lines([f"  warning: {each.warning}"])
        if texts:
            print_lines(["  it may be slow because:", *(f"  - {text}" for text in texts)])
    return 0


@click.command("parse")
@click.argument("logs", nargs=-1, type=RUN_OR_FILE)
@click.option("-f", "--follow", is_flag=True, help="Redraw the report as the logs grow.")
@click.option("--metric", metavar="NAME", help="Plot this metric instead of the loss.")
@click.option(
    "--training",
    type=click.IntRange(min=1),
    metavar="N",
    help="Show the Nth of several trainings in a log instead of the last one.",
)
@click.option(
    "--pattern",
    "patterns",
    metavar="REGEX",
    multiple=True,
    help="Regex with named groups for a custom line format.",
)
@click.option("--plot", type=FILE, help="Write the curves to FILE.png, .svg or .pdf.")
@click.option("--html", type=FILE, help="Write a self-contained HTML report.")
@click.option("--csv", type=FILE, help="Write the points as CSV.")
@click.option("--tensorboard", type=DIR, help="Write TensorBoard event files.")
@click.option(
    "-v", "--verbose", is_flag=True, help="List what looks like a metric but is not used, and why."
)
@json_option
@click.option(
    "--full", is_flag=True, help="Include every point with --json, every sample with --csv."
)
@click.option(
    "--every",
    type=click.IntRange(min=1),
    default=1,
    metavar="N",
    help="Keep only every Nth line of each kind, for logs too large for memory.",
)
@cluster_option
def parse(
    logs: tuple[str, ...],
    follow: bool,
    metric: str | None,
    training: int | None,
    patterns: tuple[str, ...],
    as_json: bool,
    full: bool,
    every: int,
    verbose: bool,
    cluster: str | None,
    **files: str | None,
) -> int:
    """Plot the loss curve, and summarize the training.

    LOGS are log files of any framework, "-" for stdin, run ids, Slurm job ids or sweeps, with one
    curve for each run; the default is the newest run. A job's stdout and stderr files (7.out 7.err)
    count as one log.

    The groups of a --pattern are the names of the metrics: 'it (?P<step>\\d+) L (?P<loss>\\S+)'.
    The corresponding key of a job file is log_patterns.

    With -f the report is redrawn as the logs grow, until the runs have ended; for a plain log file
    until Ctrl-C. If stdout is not a terminal, only the last report is printed.

    The exit code is 1 if no metric is found, and with -f also if a run failed.
    """
    from hpcrun.curves import check_files

    if follow and (verbose or training):
        raise click.UsageError(f"{'-v' if verbose else '--training'} cannot be combined with -f")
    where = make_context(cluster)
    check_files(where.cwd, logs, files)
    if where.cluster.host is not None:
        _fetch_while_importing(where, logs)
    from hpcrun.cli.show_curve import draw_report, write_report_files

    _return_freed_memory()
    if follow:
        from hpcrun.cli.watch_curve import watch_curve

        runs, ok = watch_curve(
            where, logs, patterns=patterns, metric=metric, full=full, every=every, is_quiet=as_json
        )
    else:
        from hpcrun.actions import parse_runs

        runs = parse_runs(
            where,
            logs,
            patterns=patterns,
            full=full,
            every=every,
            verbose=verbose,
            training=training,
        )
        ok = True
    if as_json:
        from hpcrun.curves import json_text

        print_line(json_text(runs, full=full).rstrip("\n"))
    else:
        print_line(draw_report(where, runs, metric=metric))
    write_report_files(where, runs, files, full=full)
    return 0 if ok and any(run.curve.metrics for run in runs) else 1


def _fetch_while_importing(where: Context, words: Sequence[str]) -> None:
    """Fetch from the cluster's host while the modules for curves are imported."""
    from hpcrun.monitor import fetch_records, find_run_or_sweep

    def load() -> None:
        with contextlib.suppress(Exception):  # an import error is reported where the module is used
            for name in ("actions.parse", "curves.report.terminal"):
                import_module(f"hpcrun.{name}")

    loader = threading.Thread(target=load, daemon=True)
    loader.start()
    known = [
        find_run_or_sweep(where.runs_dir, word) for word in words if not (where.cwd / word).exists()
    ]
    fetch_records(where, known, by_word=True, whole=True)
    loader.join()


def _return_freed_memory() -> None:
    """Return large freed columns to the system, instead of leaving holes in the heap."""
    import ctypes

    with contextlib.suppress(AttributeError, OSError):  # C libraries other than glibc lack it
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _LARGE)


def _expand_runs(
    where: Context, words: Sequence[str], last: int | None, sweep: str | None
) -> tuple[str, ...]:
    """Add the runs of the options of compare, and replace patterns of names. Raises InputError."""
    from hpcrun.monitor import list_recent_runs, resolve_run_or_sweep
    from hpcrun.runs import RunFolder

    def name(found: RunFolder | SweepFolder) -> str:
        return found.run_id if isinstance(found, RunFolder) else found.sweep_id

    if last is not None and (words or sweep):
        raise InputError(
            "--last selects the runs, so no others can be named",
            fix=f"hpcrun compare --last {last}, or name the runs",
        )
    expanded = []
    for word in words:
        is_pattern = re.search(r"[*?]", word) and "/" not in word and not Path(word).exists()
        runs = reversed(list_recent_runs(where, pattern=word)) if is_pattern else []
        expanded += [name(run) for run in runs] if is_pattern else [word]
    if sweep is not None:
        found = resolve_run_or_sweep(where, sweep)
        if isinstance(found, RunFolder):
            raise InputError(
                f"--sweep {sweep}: a run, and not a sweep", fix="name it without --sweep"
            )
        expanded.append(found.sweep_id)
    if last is not None:
        expanded += [name(run) for run in reversed(list_recent_runs(where, count=last))]
    return tuple(dict.fromkeys(expanded))


@click.command("compare")
@click.argument("logs", nargs=-1, type=RUN_OR_FILE)
@click.option(
    "--last", type=click.IntRange(2), metavar="N", help="Compare the N newest runs of the project."
)
@click.option("--sweep", type=RUN, metavar="ID", help="Compare all runs of a sweep.")
@click.option(
    "--by",
    type=click.Choice(["step", "tokens", "samples", "time"]),
    default="step",
    show_default=True,
    help="The x axis of the curves.",
)
@click.option("--metric", metavar="NAME", help="Compare this metric instead of the loss.")
@click.option(
    "--target",
    type=float,
    metavar="VALUE",
    help="The loss to reach (default: a loss that all runs reach).",
)
@click.option(
    "--gpus", metavar="N,N,...", help="The number of GPUs of each run, for plain log files."
)
@click.option("--per-gpu", is_flag=True, help="Tokens/s and samples/s in the logs are per GPU.")
@click.option("--plot", type=FILE, help="Write the curves to FILE.png, .svg or .pdf.")
@click.option("--html", type=FILE, help="Write a self-contained HTML report.")
@click.option("--markdown", is_flag=True, help="Print a Markdown table of speed, memory and loss.")
@json_option
@cluster_option
def compare(
    logs: tuple[str, ...],
    last: int | None,
    sweep: str | None,
    by: Any,
    metric: str | None,
    target: float | None,
    gpus: str | None,
    per_gpu: bool,
    markdown: bool,
    as_json: bool,
    cluster: str | None,
    **files: str | None,
) -> int:
    """Compare the loss, speed and settings of runs.

    LOGS are log files, run ids, Slurm job ids, sweeps (all their runs) or patterns of run names
    such as 'base*': at least two runs. With --last 10, the ten newest runs of the project, where a
    sweep counts as one; outside any project, of all projects.

    Differences are shown with their noise, so that chance is not mistaken for progress. Speed-up
    and efficiency are relative to the run on the fewest GPUs. A plain log file does not record its
    number of GPUs: specify it with --gpus 1,2,4,8, one number for each run.

    The exit code is 1 if no metric is found.
    """
    from msgspec import structs

    from hpcrun.actions import add_code_digests, parse_runs
    from hpcrun.cli.output import output_display, print_lines
    from hpcrun.cli.show_curve import label_sweep_runs, match_metric, write_report_files
    from hpcrun.curves import (
        check_files,
        compare_runs,
        comparison_json,
        format_comparison,
        format_markdown,
        rank_runs,
    )
    from hpcrun.runs import compute_importance
    from hpcrun.views import format_ranking, list_search_sections, search_json

    where = make_context(cluster)
    logs = _expand_runs(where, logs, last, sweep)
    if not logs:
        raise InputError(
            "nothing to compare",
            fix="name two or more log files, runs or jobs, or a sweep; or --last 2",
        )
    if target is not None and not math.isfinite(target):
        raise InputError(f"--target {target}: not a finite number", fix="as in --target 2.5")
    check_files(where.cwd, logs, files)
    runs = _set_gpus(parse_runs(where, logs), gpus)
    if len(runs) < 2:
        raise InputError(
            f"{' '.join(logs)}: one run; two or more can be compared",
            fix=f"name another one, or hpcrun parse {' '.join(logs)}",
        )
    runs, notes = add_code_digests(where.runs_dir, runs)
    named = label_sweep_runs(where, runs)
    result = _find_search(where, logs)
    matched, falls = match_metric(runs, metric), None
    if result is not None:
        searched = result.search.metric
        if metric is None and any(searched in run.curve.metrics for run in runs):
            matched = searched
        falls = result.search.goal == "minimize" if matched == searched else None
    importance = None if result is None else compute_importance(result)
    compared = compare_runs(
        runs if as_json else named,
        metric=matched,
        falls=falls,
        target=target,
        per_gpu=per_gpu,
    )
    compared = structs.replace(compared, notes=(*compared.notes, *notes))
    if as_json:
        found = comparison_json(runs, compared)
        if result is not None:
            found["search"] = search_json(result, importance)
        emit_json(found)
    elif markdown:
        print_line(format_markdown(named, compared))
    else:
        print_line(format_comparison(named, compared, drawing_display(), by=by, per_gpu=per_gpu))
        if result is not None:
            print_lines(["", *format_ranking(result, importance, output_display())])
    ranked = [runs[number] for number, _ in rank_runs(runs, compared)]
    sections = [] if result is None else list_search_sections(result, importance)
    by = "step" if by == "samples" else by
    write_report_files(where, ranked, files, by=by, sections=sections)
    return 0 if any(run.curve.metrics for run in runs) else 1


def _find_search(where: Context, logs: Sequence[str]) -> SearchResult | None:
    """Return the trials of a sweep with a metric, if that is all that is compared."""
    from hpcrun.monitor import find_targets_by_word
    from hpcrun.runs import SweepFolder, read_search_result, runs_of

    if len(logs) != 1 or (where.cwd / logs[0]).exists():
        return None
    found = find_targets_by_word(where, list(logs)).get(logs[0])
    return read_search_result(runs_of(found)) if isinstance(found, SweepFolder) else None


def _set_gpus(runs: Sequence[ParsedRun], gpus: str | None) -> list[ParsedRun]:
    from msgspec import structs

    if gpus is None:
        return list(runs)
    numbers = gpus.split(",")
    if not all(each.strip().isdecimal() and int(each) for each in numbers):
        raise InputError(f"--gpus {gpus}: not whole numbers", fix="as in --gpus 1,2,4,8")
    if len(numbers) != len(runs):
        named = ", ".join(run.source for run in runs)
        raise InputError(
            f"--gpus {gpus}: {len(numbers)} numbers for {len(runs)} runs",
            fix=f"one for each, in this order: {named}",
        )
    return [structs.replace(run, gpus=int(each)) for run, each in zip(runs, numbers, strict=True)]


@click.command("report")
@click.argument("jobs", nargs=-1, metavar="[JOB]...", type=RUN)
@click.option(
    "--since", metavar="WHEN", help="Report all runs submitted since this time, e.g. 30d."
)
@click.option(
    "--project", metavar="DIR", help="Report all runs of this project: its directory, or its name."
)
@click.option("--name", metavar="PATTERN", help="Report all runs of this name, e.g. 'lr*'.")
@json_option
@click.option("--csv", type=FILE, help="Write a row per run as CSV.")
@click.option("--html", type=FILE, help="Write a self-contained HTML page.")
@cluster_option
def report(
    jobs: tuple[str, ...],
    since: str | None,
    project: str | None,
    name: str | None,
    as_json: bool,
    cluster: str | None,
    **files: str | None,
) -> int:
    """Report what runs held and how much of it trained, and suggest what to request instead.

    JOB is a run id, a sweep, a group or any Slurm job id; the default is the newest run. Runs
    of a sweep, and tasks of an array, have a row each, and a total.

    The report has GPU hours, the mean use and the peak memory of each GPU, the goodput and what the
    rest of the time was lost to, the energy and, with cost in the cluster profile, money and CO2.
    Suggestions about GPUs need samples of all GPUs, of ten minutes and of half of the run.
    """
    from hpcrun.actions import check_report_files, measure_runs, write_report_csv
    from hpcrun.cli.output import output_display, print_lines, print_note
    from hpcrun.runs import advise
    from hpcrun.views import (
        efficiencies_json,
        efficiencies_rows,
        format_efficiencies,
        list_page_sections,
    )

    where = make_context(cluster)
    only = parse_filter(name, since, None, project)
    if jobs and only is not None:
        raise InputError(
            "--since, --project and --name select the runs, so no JOB can be named",
            fix="leave out JOB, or the options",
        )
    check_report_files(where, files)
    runs, silence = measure_runs(where, jobs, only)
    advice, notes = advise(runs)
    currency = where.cluster.cost.currency
    if as_json:
        emit_json(efficiencies_json(runs, advice, notes, currency))
    elif runs:
        print_lines(format_efficiencies(runs, advice, notes, currency, output_display()))
    else:
        print_line("no run matches; hpcrun status shows the newest runs")
    if (file := files["csv"]) is not None:
        write_report_csv(where.cwd / file, efficiencies_rows(runs))
        print_note(f"wrote {file}")
    if (file := files["html"]) is not None:
        from hpcrun.curves import write_table_page

        title = (runs[0].name or runs[0].word) if len(runs) == 1 else f"{len(runs)} runs"
        tiles, sections = list_page_sections(runs, advice, notes, currency)
        write_table_page(where.cwd / file, title, tiles, sections)
        print_note(f"wrote {file}")
    if silence:
        print_note(f"Slurm cannot be reached: {silence}")
    return 4 if silence else 0


@click.command("lint")
@click.argument("scripts", nargs=-1, metavar="[SCRIPT | DIR | -]...", type=FILE)
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json", "github", "sarif"]),
    default="text",
    help="The format of the findings (default: text).",
)
@click.option(
    "--severity",
    type=click.Choice(["error", "warning", "note"]),
    default="note",
    help="The least severity that is reported (default: note).",
)
@click.option("--fix", is_flag=True, help="Show the safe fixes as a diff, and apply them.")
@click.option("--yes", is_flag=True, help="With --fix: apply them without asking.")
@click.option(
    "--cluster",
    type=CLUSTER,
    help="Compare the requests with the limits, partitions and GPU types of this profile.",
)
@json_option
def lint(
    scripts: tuple[str, ...],
    form: str,
    severity: str,
    fix: bool,
    yes: bool,
    cluster: str | None,
    as_json: bool,
) -> int:
    """Find mistakes in sbatch scripts: settings that Slurm, launchers or NCCL ignore or refuse.

    SCRIPT is any sbatch script, "-" is standard input; in a folder, files with #SBATCH lines are
    checked. The scripts are only read, never run, and no cluster is needed. An error means that the
    job fails or does not do what the script says, a warning is a likely problem, a note is advice.

    A comment ignores a rule on its line, or on the next one: # hpcrun: ignore=RULE reason. With
    ignore-file=RULE it applies to the whole file.

    The exit code is 1 if an error is found.
    """
    import msgspec

    from hpcrun.actions import lint_paths, write_fixed
    from hpcrun.cli.output import confirm, print_lines
    from hpcrun.lint import format_github, format_sarif, format_text

    if not scripts:
        raise InputError("no script given", fix="hpcrun lint SCRIPT..., or - for standard input")
    where = make_context(cluster) if cluster is not None else None
    checked = lint_paths(scripts, where)
    if fix:
        changed = [one for one in checked if one.path is not None and one.fixed != one.text]
        for one in changed:
            print_lines(one.diff)
        if changed and (yes or confirm(f"Change {len(changed)} of {len(checked)} scripts?")):
            for one in changed:
                write_fixed(one)
            checked = lint_paths(scripts, where)
    levels = ("error", "warning", "note")
    shown = levels[: levels.index(severity) + 1]
    found = [each for one in checked for each in one.findings if each.severity in shown]
    form = "json" if as_json else form
    if form == "json":
        rows = [{**msgspec.to_builtins(one), "edit": None} for one in found]
        for row in rows:
            del row["edit"]
        emit_json({"scripts": [one.name for one in checked], "findings": rows})
    elif form == "sarif":
        emit_json(format_sarif(found))
    else:
        is_text = form == "text"
        print_lines(format_text(found, len(checked)) if is_text else format_github(found))
    return 1 if any(one.severity == "error" for one in found) else 0
