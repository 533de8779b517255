"""A module for each section of --help, imported when a verb is called; only output.py prints."""
