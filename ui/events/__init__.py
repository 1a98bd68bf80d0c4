"""The trace line by line: plain sentences, filtered, as a table and as CSV."""
