"""The part of the checks of a rank that Python runs at each start.

Python finds this module as ``sitecustomize`` in an archive on its path (``hook.pyz``), so that no
bytecode is written next to it: it is compiled each time, so the checks are in a module of their own
(``rank_hook.py``), which is loaded when the program imports torch. It is active only in the process
of a rank, not in its child processes. Standard library only; Python 3.6 and later.
"""

import atexit
import os
import sys

# The module typing would take longer to import than this one. mypy takes this for its constant.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# The modules that are checked after their import, and the functions of rank_hook.py that do it.
CHECKS = {
    "torch.distributed.distributed_c10d": "check_process_group",
    "torch.optim.optimizer": "check_first_step",
    "lightning.pytorch.trainer.trainer": "check_lightning",
    "pytorch_lightning.trainer.trainer": "check_lightning",
    "deepspeed.runtime.engine": "check_engine",
    "torch.cuda.memory": "keep_peaks",
    "torch.utils.data.dataloader": "time_loading",
}


class Finder:
    """Finds the modules of CHECKS, each once."""

    def __init__(self, archive: "Any") -> None:
        self.archive = archive
        self.hook = None  # type: Any

    def find_spec(self, name: str, path: "Any" = None, target: "Any" = None) -> "Any":
        """Find a checked module through the other finders."""
        check = CHECKS.pop(name, None)
        if check is None:
            return None
        try:
            return self.load_hook().find_checked_module(name, check)
        except (ImportError, OSError) as error:  # the run's folder is gone
            sys.stderr.write("hpcrun: {} is not checked: {}\n".format(name, error))
            return None

    def load_hook(self) -> "Any":
        """Load rank_hook.py from the archive, whatever the program has done to sys.path."""
        if self.hook is None:
            hook = type(sys)("hpcrun_rank_hook")
            exec(self.archive.get_code("rank_hook"), hook.__dict__)
            self.hook = hook
        return self.hook

    def write_usage(self) -> None:
        """Record the usage, if one of the modules that use a GPU was imported."""
        if self.hook is not None:
            self.hook.USAGE.write()


def load_next() -> None:
    """Load the sitecustomize module that this one hides on the path."""
    from importlib.machinery import PathFinder

    here = os.path.realpath(__file__).rpartition("/")[0]
    path = [entry for entry in sys.path if os.path.realpath(entry or ".") != here]
    spec = PathFinder.find_spec("sitecustomize", path)
    if spec is not None and spec.loader is not None:
        from importlib.util import module_from_spec

        module = module_from_spec(spec)
        spec.loader.exec_module(module)


def enable() -> None:
    """Watch imports in the process of a rank; the environment marks its child processes."""
    if "RANK" in os.environ and "HPCRUN_RANK_HOOK" not in os.environ:
        os.environ["HPCRUN_RANK_HOOK"] = str(os.getpid())
        finder = Finder(__spec__.loader)
        atexit.register(finder.write_usage)
        sys.meta_path.insert(0, finder)


if __name__ == "sitecustomize":
    enable()
    load_next()
