"""The variables in which tables lie, stacked, on parameter servers."""
