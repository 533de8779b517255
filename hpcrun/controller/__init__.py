"""One module per action; it ties the parts below together.

What watches (monitor, job_output, logs, top, ended) never changes or cancels anything.
"""
