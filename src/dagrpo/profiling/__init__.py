"""`dagrpo profile`: where the time of a training step goes."""
