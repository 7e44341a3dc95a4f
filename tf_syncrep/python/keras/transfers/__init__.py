"""What the tasks of a cluster send one another in a step, in few messages."""
