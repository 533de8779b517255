"""JobStatus -> lines of text and JSON: listings, details, top, the changes that watchers show.

Pure: no files, processes, sockets, environment, clock or randomness; text and values in,
values out.
"""
