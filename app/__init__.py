"""The application on the driver: settings, session, what the jobs do, and how it is shown."""
