"""`dagrpo replay`: steps of a run computed again from its rollouts, and compared with the digests that it recorded."""
