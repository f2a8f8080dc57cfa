"""What a completion is worth. A reward is one small file that reads a text; nothing here knows who wrote it."""
