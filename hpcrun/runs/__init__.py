"""The run folder: layout, records, store, verdict."""
