"""Per-sample losses: ``(outputs, rows) -> (b,)``, never reduced, larger is worse for the model."""
