"""Clusters: TF_CONFIG, the local launcher and the task server.

No module here imports TensorFlow when it is imported itself, so that the command line
answers at once; only a running server imports it.
"""
