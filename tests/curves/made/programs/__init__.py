"""Programs that train a tiny model with one framework each and record the logged values."""
