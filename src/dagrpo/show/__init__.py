"""`dagrpo show`: the best and the worst attempts of a training step or of an evaluation, as conversations."""
