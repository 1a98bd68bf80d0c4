"""What a query sees, where keys and values lie, and the operators that compute it."""
