"""Programs that train something tiny with one framework each and note what they log."""
