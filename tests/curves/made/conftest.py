"""Programs that run in other environments are not imported by pytest."""

collect_ignore = ["programs"]
