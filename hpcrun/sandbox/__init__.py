"""A real Slurm on this machine, without root, to try jobs on."""
