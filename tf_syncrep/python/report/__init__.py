"""`tf-syncrep report`: what a synchronous training did, in words and as a picture."""
