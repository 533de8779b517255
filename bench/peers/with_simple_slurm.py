"""Submits a bash command as simple_slurm's documentation does it."""

from simple_slurm import Slurm

print(Slurm(job_name="bench", time="5").sbatch("true", shell="/bin/bash"))
