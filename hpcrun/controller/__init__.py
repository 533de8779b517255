"""One module per action; it ties the parts below together."""
