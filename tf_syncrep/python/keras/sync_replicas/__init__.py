"""SyncReplicas: synchronous training, on a cluster and in one process.

The class is in `optimizer`. Its `rounds` are an interface: `cluster_rounds` asks a gate
through `cluster_ops` and is an `updater`, and `in_process_rounds` adds up the
gradients of several batches. `targets` are the variables that are updated.
`rounds_optimizer` is its base class, and that of `gradient_accumulation`. `ordering`
makes a step wait for its permit, `update_context` is where an update is made, and
`keeping` keeps rows for a checkpoint before it. `settings` tells whether an update that
was traced is still the optimizer's. `sync_report` is the callback that reports on a
training, by `scalars_writer`.
"""
