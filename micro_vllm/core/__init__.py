"""Who runs, and on which blocks. Knows block ids only: no tensor, no torch."""
