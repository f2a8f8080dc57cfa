"""`dagrpo new`: a working plug-in with its test, as a start."""
