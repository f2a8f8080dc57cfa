"""Chat templates, renderers and parsers of tool calls."""
