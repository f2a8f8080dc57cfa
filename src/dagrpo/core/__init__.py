"""Errors, records, plug-ins and the base of sections, for every package."""
