"""The report of an experiment: figures, numbers for DVC, and one page that opens offline."""
