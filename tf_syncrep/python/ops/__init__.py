"""The op library and the documented wrappers of its ops.

`op_library` finds and loads the library. Each of the other modules wraps the ops of one
file of `tf_syncrep/cc/ops`, whose stem it has, and `stochastic_rounding` describes
rounding to them.
"""
