"""Tasks: data sets in one prompt form each."""
