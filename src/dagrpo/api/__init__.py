"""Tables and policies of finished runs, for notebooks."""
