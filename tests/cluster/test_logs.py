"""hpcrun logs on a real Slurm: other jobs, arrays, and secrets after the end of a run."""

from __future__ import annotations

from tests.cluster.plain_sbatch import sbatch
from tests.cluster.site import Site

DRAWN = "aB3dE5gH7jK9mN1pQ3sT5vW7"


def test_other_job_is_followed_to_its_exit_code(site: Site) -> None:
    body = f"echo out; echo oops >&2; echo MY_API_KEY={DRAWN}; sleep 1; exit 5"
    job = sbatch(site, body, "--output=%x-%j.out", "--error=%N.err")
    done = site.hpcrun("logs", "-f", job)
    assert done.returncode == 1, done.stdout + done.stderr
    assert sorted(done.stdout.splitlines()) == ["MY_API_KEY=***", "[stderr]: oops", "out"]
    assert f"job {job}: FAILED, exit code 5" in done.stderr
    again = site.hpcrun("logs", "--err", job)
    assert again.stdout == "[stderr]: oops\n"


def test_other_array_is_followed_task_by_task(site: Site) -> None:
    job = sbatch(site, "echo task $SLURM_ARRAY_TASK_ID", "--array=0-2")
    done = site.hpcrun("logs", "-f", job)
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(done.stdout.splitlines()) == [f"[task{n}]: task {n}" for n in range(3)]
    assert site.hpcrun("logs", f"{job}_1").stdout == "task 1\n"


def test_output_patterns_with_widths_are_found(site: Site) -> None:
    patterns = ("%8j.txt", "%x-%9u-%n.txt", "%3n-%J-%s.txt", "%12t-%N.txt", "%5A_%3a-%j.txt")
    jobs = [sbatch(site, f"echo is {at}", f"--output={p}") for at, p in enumerate(patterns)]
    tasks = sbatch(site, "echo is it", "--array=3", "--output=%8A_%4a-%9j.txt")
    for at, job in enumerate(jobs):
        assert site.hpcrun("logs", "-f", job).stdout == f"is {at}\n", patterns[at]
    assert site.hpcrun("logs", "-f", tasks).stdout == "is it\n"
    silent = sbatch(site, "sleep 3", "--output=/dev/null")  # Slurm soon forgets its file
    assert "it is discarded: sbatch --output=/dev/null" in site.hpcrun("logs", silent).stderr
    done = site.hpcrun("logs", "-f", silent)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


def test_secret_is_masked_after_the_end_of_the_run(site: Site) -> None:
    (site.project / "tell.yaml").write_text(
        'command: [bash, -c, "echo it is $MY_WORD"]\nsecrets: [MY_WORD]\n'
        "resources: {gpus_per_node: 0}\n"
    )
    run = site.submit("tell.yaml", env={"MY_WORD": DRAWN})
    done = site.hpcrun("logs", "-f", run.job_id)
    assert "it is ***\n" in done.stdout and DRAWN not in done.stdout, done.stdout
    assert not (run.folder / "secrets.env").exists()
    again = site.hpcrun("logs", run.job_id)
    assert "it is ***\n" in again.stdout and DRAWN not in again.stdout
    assert f"it is {DRAWN}\n" in site.hpcrun("logs", "--raw", run.job_id).stdout
