"""Convert an sbatch script to a job: its directives, environment, launcher and program.

Pure: the text of a script comes in as an argument.
"""

from __future__ import annotations

from hpcrun.lazy import attach_stub

__getattr__, __dir__ = attach_stub(__name__, __file__)
