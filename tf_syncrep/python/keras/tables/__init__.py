"""The variables in which tables lie, stacked, on parameter servers.

`tables` makes those of tables of fixed size, and `dynamic_tables` those of tables that
grow, which `dynamic` describes; both have in common what is in `stacked_tables`.
`saved_layout` describes how they lie. `slots` saves what an optimizer keeps beside
them, and `maintenance` removes rows of tables that grow. Their `initial_values`,
`row_slots` and `trainers` are modules, too. `table_stats` counts what happens in those
that grow, and `setting` keeps checkpoints whole while tables are set. `misfits` are
tables that a file does not fit, and `whole_variables` warns of optimizers that want a
table in a variable of its own.
"""
