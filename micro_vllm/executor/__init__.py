"""Carries a plan to the workers and brings the sampled tokens back."""
