"""The Python side of tf_syncrep; its public names are those of the package itself."""
