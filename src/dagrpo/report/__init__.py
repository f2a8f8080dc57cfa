"""The report: figures, numbers for DVC, and an offline page."""
