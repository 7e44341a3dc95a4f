"""`tf-syncrep report`: what a synchronous training did, in words and as a picture.

`event_files` reads what `SyncReport` or v1's hook has written, `training` puts a
training together from that, and `summary`, `picture` and `live` show it. `command` is
the command line.
"""
