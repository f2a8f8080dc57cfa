"""From conversations to tokens: templates, renderers and parsers of tool calls."""
