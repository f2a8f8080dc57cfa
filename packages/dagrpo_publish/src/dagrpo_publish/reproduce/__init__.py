"""`dagrpo reproduce`: an experiment of another machine, run again and compared."""
