"""What SyncReplicas shows of a training."""
