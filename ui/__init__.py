"""The page: talks to the engine through its public API and its trace only."""
