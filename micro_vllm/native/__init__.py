"""The native decoder: int8 weights and paged attention in C++, compiled for the CPU at hand when it is first needed."""
