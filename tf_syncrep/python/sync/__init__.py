"""The parts of synchronous training that v1 sessions and Keras share."""
