"""From the bytes of a log to a curve.

Pure: no files, processes, sockets, environment, clock or randomness; text and values in,
values out.
"""
