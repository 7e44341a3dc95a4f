"""Embedding layers whose tables are on parameter servers.

The layers are in `embedding` and `distributed_embedding`, and `config` describes tables
and features. `tables` makes the variables. `tracking`, `saved_layout`, `slots` and
`weights` save and restore them, in whatever number of parts. `dynamic` describes tables
that grow, and `dynamic_tables` makes their variables.
"""
