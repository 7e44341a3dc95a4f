"""The op library and the documented wrappers of its ops."""
