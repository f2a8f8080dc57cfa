"""`dagrpo status`: the state of this folder's experiments, from their records."""
