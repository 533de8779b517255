"""One module per verb, imported when it is called; only output.py prints."""
