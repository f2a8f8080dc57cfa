"""`dagrpo verify`: recompute every digest from raw data to report."""
