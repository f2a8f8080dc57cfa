"""Checks that end a broken training run with an error.

Without them it would go wrong in silence. suite.py combines them for the loop.
"""
