"""Python code that runs inside the job: standard library only, in the syntax of Python 3.6.

Each run gets these modules as one archive, ``jobside.pyz``, which the job's bash scripts call
(``templates/jobside.sh``). Other code that applies the same rules imports them from here.
"""

from __future__ import annotations

from hpcrun.lazy import attach_stub

__getattr__, __dir__ = attach_stub(__name__, __file__)
