"""`dagrpo compare`: which of several experiments is better, by how much, and what differs between them."""
