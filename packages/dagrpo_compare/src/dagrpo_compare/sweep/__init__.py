"""`dagrpo sweep`: the cells of a sweep, and their scores."""
