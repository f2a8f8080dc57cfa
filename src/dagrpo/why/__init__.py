"""`dagrpo why FILE`: why the stage that makes a file would run again."""
