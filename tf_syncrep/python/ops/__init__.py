"""The op library, and wrappers of the ops that need one.

A module has the stem of the file of `tf_syncrep/cc/ops` whose ops it wraps.
"""
