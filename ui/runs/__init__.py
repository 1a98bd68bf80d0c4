"""Many requests at once: side-by-side answers and workloads, each on a card that streams."""
