"""Programs that make attempts: start, watch, end, input and report."""
