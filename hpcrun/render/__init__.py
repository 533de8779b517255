"""From a Plan to the text of every file that a job receives.

Pure: no files, processes, sockets, environment, clock or randomness; text and values in,
values out.
"""
