"""Data that several workers share.

`work_queue` hands out items, each to one worker; `session_takes` does so in
`tf.compat.v1` graphs. `items` makes an array of what users give.
"""
