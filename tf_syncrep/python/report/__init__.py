"""`tf-syncrep report`: describes and draws a synchronous training."""
