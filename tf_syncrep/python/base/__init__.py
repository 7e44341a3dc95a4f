"""What all layers above the ops share: arguments, deadlines, waits, messages."""
