"""`dagrpo compare`: which experiment is better, and what differs."""
