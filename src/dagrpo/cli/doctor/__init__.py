"""`dagrpo doctor`: check this machine and suggest fixes.

It changes nothing.
"""
