"""Tables that are spread over parameter servers: their layout, and lookups in them."""
