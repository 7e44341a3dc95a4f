"""The variables in which tables lie, stacked, on parameter servers.

`fixed_tables` makes those of tables of fixed size, and the folder `growing` those of
tables that grow; both have in common what is in `stacked_tables`. `saved_layout`
describes how they lie. `slots` saves what an optimizer keeps beside them. Their
`initial_values`, `row_slots` and `trainers` are modules, too, and `setting` keeps
checkpoints whole while tables are set. `misfits` are
tables that a file does not fit, and `whole_variables` warns of optimizers that want a
table in a variable of its own.
"""
