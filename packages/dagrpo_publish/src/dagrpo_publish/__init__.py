"""`dagrpo publish`: policy and rollouts in the hub's layout."""
