"""`dagrpo doctor`: check this machine and suggest fixes."""
