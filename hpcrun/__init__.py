"""hpcrun: from a short YAML file to a loss curve on any Slurm cluster."""

__version__ = "0.1.0"
