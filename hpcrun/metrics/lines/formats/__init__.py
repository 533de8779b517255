"""The table of formats: ``known.FORMATS``; what an entry is: ``form.Format``."""
