"""`dagrpo verify RUN`: every digest of an experiment recomputed, from the raw data to the report."""
