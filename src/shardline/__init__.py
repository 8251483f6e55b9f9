"""Time-varying tables on object storage, and SQL views kept up to date."""
