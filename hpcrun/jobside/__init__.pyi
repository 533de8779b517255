from hpcrun.jobside.checkpoints import newest_checkpoint as newest_checkpoint
from hpcrun.jobside.ends import IDLE_ATTEMPTS_NOTE as IDLE_ATTEMPTS_NOTE
from hpcrun.jobside.ends import MAX_IDLE_ATTEMPTS as MAX_IDLE_ATTEMPTS
