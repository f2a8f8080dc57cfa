"""`dagrpo power`: seeds and problems that show a difference."""
