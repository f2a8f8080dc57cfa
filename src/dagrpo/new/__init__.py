"""`dagrpo new`: a working plug-in with its test, to begin from, in this repository or in a package of the user's own."""
