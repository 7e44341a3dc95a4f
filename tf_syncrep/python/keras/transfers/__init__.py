"""What the tasks of a cluster send one another in a step, in few messages.

`transfers` rewrites the graph of a step. `tasks` tells where an op runs, and `dataflow`
which op comes after which. `packing` puts tensors together and takes them apart, and
`rows` has rows of tables bring others along. `prefetch` reads rows of the next step.
"""
