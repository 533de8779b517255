"""Programs that a run is given: reference/ is a trainer of its own, copied, never imported."""
