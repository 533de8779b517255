"""Submits a bash command as submitit's documentation does it."""

import sys

import submitit

executor = submitit.AutoExecutor(folder=sys.argv[1], cluster="slurm")
executor.update_parameters(timeout_min=5)
job = executor.submit(submitit.helpers.CommandFunction(["bash", "-c", "true"]))
print(job.job_id)
