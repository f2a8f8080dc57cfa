"""`dagrpo train`: one half of training steps by itself, to find out which of them is at fault. Not the stage train."""
