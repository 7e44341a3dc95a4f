"""What synchronous training needs in v1 sessions and in Keras alike."""
