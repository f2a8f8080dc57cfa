"""`dagrpo doctor`: checks this machine and suggests fixes.

Changes nothing.
"""
