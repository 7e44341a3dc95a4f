"""Tables that grow: keys get rows when they come first, and lose them when they rest."""
