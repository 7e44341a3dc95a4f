"""The version of this package, which modules of all layers may import."""

VERSION = "0.1.0"
