"""The engine: requests in, steps, outputs out; and the loop that lets many callers share it."""
