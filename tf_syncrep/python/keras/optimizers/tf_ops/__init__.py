"""The rules by ops of TensorFlow, where the kernels cannot run: XLA, other devices."""
