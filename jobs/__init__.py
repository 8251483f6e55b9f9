"""Programs: each parses its command line, calls the application, and returns a status."""
