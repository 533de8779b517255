"""Why a job failed: lines of its logs and records, judged by a table of rules.

Pure: it neither reads files nor asks Slurm; lines and records come in as arguments.
"""
