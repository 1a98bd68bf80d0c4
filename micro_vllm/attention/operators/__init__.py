"""Attention operators: one readable reference, and the faster ones that must agree with it."""
