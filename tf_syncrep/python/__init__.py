"""The Python side of tf_syncrep; its public names are those of the package itself.

Each folder is a layer, and CONTRIBUTING.md has a table of them. `cli` is the command
`tf-syncrep`, `doctor` is one of its subcommands, and `version` is the version.
"""
