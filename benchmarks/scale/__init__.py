"""How costs grow: each module measures one kind at several sizes and prints a table."""
