"""Stand-in for verl 0.9.1 in tests: its files and interfaces, no training. Each step adds a number to every weight."""

__version__ = "0.9.1"
