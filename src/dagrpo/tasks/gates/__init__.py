"""What a problem must pass before it is written: one file per gate. prepare.py puts them in order."""
