from hpcrun.jobside.checkpoints import newest_checkpoint as newest_checkpoint
