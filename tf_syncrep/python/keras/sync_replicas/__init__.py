"""SyncReplicas: synchronous training, on a cluster and in one process.

The class is in `optimizer`. Its `rounds` are an interface: `cluster_rounds` asks a gate
through `cluster_ops` and has an `updater`, and `in_process_rounds` adds up the
gradients of several batches. `targets` are the variables that are updated.
`sync_report` is the callback that reports on a training.
"""
