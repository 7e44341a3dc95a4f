"""The same rules by ops of TensorFlow, where the library has no kernel for a device."""
