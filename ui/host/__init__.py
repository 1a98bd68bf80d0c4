"""The engine behind the page: which model and options serve, what changes them, and the fast path."""
