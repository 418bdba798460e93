"""What was measured, read back from records and shown with its uncertainty; nothing here sees a model."""
