"""Tables that are spread over parameter servers: their layout, and lookups in them.

`layout` says where each row is, and `lookup` builds the ops that get rows from there;
`dynamic_lookup` does so for tables that grow. `ragged` is about ids that are not as
many in each example, `id_weights` about weights of ids, and `compat` has the private
names.
"""
