"""Changes to generated scripts, each of which a test of a trap must notice."""

from __future__ import annotations

from tests.traps import guards_of_jobs, guards_of_watchers

MUTATIONS = [*guards_of_jobs.GUARDS, *guards_of_watchers.GUARDS]
