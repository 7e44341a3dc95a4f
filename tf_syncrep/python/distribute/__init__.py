"""Clusters: TF_CONFIG, the local launcher and the task server.

Nothing here imports TensorFlow at module level, so that the command line
answers at once; only a running server does.
"""
