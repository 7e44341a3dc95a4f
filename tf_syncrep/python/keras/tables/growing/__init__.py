"""Tables that grow: a key gets a row when it comes first, and loses it when idle."""
