"""A job's volume: a short-lived pod on it, files to and from it, splitting data there."""
