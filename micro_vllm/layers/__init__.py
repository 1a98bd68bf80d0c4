"""The parts of a decoder. Each takes its sizes, dtype and device; weights have no values until loaded."""
