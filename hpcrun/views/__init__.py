"""Snapshot -> lines of text: listing, details, top, follow.

Pure: no files, processes, sockets, environment, clock or randomness; text and values in,
values out.
"""
