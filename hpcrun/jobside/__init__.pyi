from hpcrun.jobside.checkpoints import newest_checkpoint as newest_checkpoint
from hpcrun.jobside.records import IDLE_ATTEMPTS_NOTE as IDLE_ATTEMPTS_NOTE
from hpcrun.jobside.records import MAX_IDLE_ATTEMPTS as MAX_IDLE_ATTEMPTS
from hpcrun.jobside.records import is_known_version as is_known_version
