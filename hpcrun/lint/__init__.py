"""Rules for sbatch scripts: wrong, ignored and harmful settings of Slurm, launchers and NCCL.

Pure: the text of a script comes in as an argument.
"""

from __future__ import annotations

from hpcrun.lazy import attach_stub

__getattr__, __dir__ = attach_stub(__name__, __file__)
