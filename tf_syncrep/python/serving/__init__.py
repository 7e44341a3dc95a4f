"""Models that serve and follow a training; nothing here loads the op library."""
