"""`dagrpo status`: what every experiment of this folder has come to, from the records of its runs alone."""
