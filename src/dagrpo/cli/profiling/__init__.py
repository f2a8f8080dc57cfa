"""`dagrpo profile`: time of each part of a training step."""
