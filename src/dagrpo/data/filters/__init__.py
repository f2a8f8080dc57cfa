"""Filters of problems, one file each; prepare.py orders them."""
