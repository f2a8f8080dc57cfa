"""Figures of the report; each function draws one and captions it."""
