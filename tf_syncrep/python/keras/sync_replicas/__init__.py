"""SyncReplicas: synchronous training, on a cluster and in one process."""
