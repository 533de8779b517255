"""hpcrun: from a short YAML file to a loss curve on any Slurm cluster.

Programs submit, await and read runs by the names in ``__all__``, as in::

    run = hpcrun.submit("zero2-4gpu", set={"batch.micro_batch_per_gpu": 2})
    status = run.wait()
    print(status.state, run.metrics().columns()["loss"][-1])
"""

from __future__ import annotations

from hpcrun.version import __version__ as __version__

TYPE_CHECKING = False  # typing's own takes long to import, and Ctrl-C may come meanwhile
if TYPE_CHECKING:
    from typing import Any

    from hpcrun.api import (
        DryRun,
        Run,
        Status,
        Sweep,
        dry_run,
        find,
        find_sweep,
        newest,
        parse,
        status_of,
        submit,
        submit_sweep,
        wait,
    )
    from hpcrun.errors import (
        CommandFailed,
        HpcrunError,
        InputError,
        OutOfReach,
        SchedulerRefused,
        SpecError,
        WaitTimeout,
    )

# No name of a module of hpcrun is among them: importing that would take the function's place.
__all__ = [
    "CommandFailed",
    "DryRun",
    "HpcrunError",
    "InputError",
    "OutOfReach",
    "Run",
    "SchedulerRefused",
    "SpecError",
    "Status",
    "Sweep",
    "WaitTimeout",
    "dry_run",
    "find",
    "find_sweep",
    "newest",
    "parse",
    "status_of",
    "submit",
    "submit_sweep",
    "wait",
]


def __getattr__(name: str) -> Any:
    """Import what programs call when it is asked for: the command line needs none of it."""
    if name in __all__:
        from hpcrun import api, errors

        return getattr(errors, name, None) or getattr(api, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
