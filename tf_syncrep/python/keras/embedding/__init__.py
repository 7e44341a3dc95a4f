"""Embedding layers whose tables are on parameter servers.

The layers are in `embedding`, `dynamic_embedding` and `distributed_embedding`, and
`config` describes tables and features. `ids` makes tensors of what users give, and
`growing_layer` is a mixin for tables that grow. `tracking`, `weights` and
`dynamic_files` save and restore tables in whatever number of parts. `table_upkeep` is
what training does for tables that grow, and `serving` exports models with them.
"""
