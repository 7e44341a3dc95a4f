"""`tf-syncrep report`: describes and draws a synchronous training.

`event_files` reads the files of `SyncReport` or of v1's hook, `training` reconstructs a
training from them, and `summary`, `picture` and `live` show it. `command` is the
command line.
"""
