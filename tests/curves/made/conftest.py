"""What runs in other environments than the tests' own is not imported by pytest."""

collect_ignore = ["programs"]
