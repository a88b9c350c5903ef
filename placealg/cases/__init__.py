"""What a person hands over (a strategy, an expression, a file, sizes), as cases: for Python and for commands."""
