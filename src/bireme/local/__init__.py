"""Running a job as processes on this machine."""
