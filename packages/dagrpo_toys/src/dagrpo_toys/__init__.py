"""Generated toy tasks."""
