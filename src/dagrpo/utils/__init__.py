"""Files, locks, processes, devices and the console."""
