"""Slurm's dialect: the command lines that are asked, and parsers of what they answer.

Pure: no files, processes, sockets, environment, clock or randomness; text and values in,
values out.
"""
