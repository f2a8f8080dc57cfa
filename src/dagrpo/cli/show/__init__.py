"""`dagrpo show`: best and worst attempts of a step or an evaluation."""
