"""What will happen: every decision from a job and a cluster to a Plan.

Pure: no files, processes, sockets, environment, clock or randomness; text and values in,
values out.
"""
