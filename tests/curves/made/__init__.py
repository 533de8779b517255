"""The project's own test logs: the programs that create them, and their expected content.

`python -m tests.curves.made` writes tests/curves/logs anew: by running the frameworks on tiny
models (programs/, runs.py), or, where a framework cannot run on a few CPUs, by printing with the
framework's own format (printed.py). The truth in the index comes from what was logged, as the
program or the generator knows it; no log is ever read for it.
"""
