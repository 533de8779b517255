"""``python -m hpcrun``: the same as ``hpcrun``, whatever else on the PATH has that name."""

from hpcrun.cli.start import main

main()
