"""What runs inside the job, in Python: the standard library alone, and the syntax of Python 3.6.

Each run gets these modules as one archive, ``jobside.pyz``, which the job's bash calls
(``templates/jobside.sh``). What hpcrun decides by the same rules elsewhere imports them from here.
"""

from __future__ import annotations

from hpcrun.lazy import attach_stub

__getattr__, __dir__ = attach_stub(__name__, __file__)
