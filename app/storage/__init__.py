"""Storage: sources, sinks, their statuses and statistics."""
