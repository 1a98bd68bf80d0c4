"""Traces as files: saved without the words of others, opened with every claim checked; the sample."""
