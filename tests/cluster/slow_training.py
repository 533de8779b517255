"""A training that takes long to save when it is asked to end."""

from __future__ import annotations

from tests.cluster.survive_job import TRAIN

# Asked to end, it takes so many seconds to save.
SLOW = TRAIN.replace(
    "    if rank == 0 and (asked", '    if asked:\n        time.sleep(int(os.environ["SAVES"]))\n'
    "    if rank == 0 and (asked",
)  # fmt: skip
