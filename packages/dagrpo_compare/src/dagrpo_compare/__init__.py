"""Finished experiments side by side: commands `dagrpo compare`, `sweep` and `power`."""
