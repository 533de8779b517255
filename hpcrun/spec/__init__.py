"""Jobs and cluster profiles, read from YAML and checked.

Pure: no files, processes, sockets, environment, clock or randomness; text and values in,
values out.
"""
