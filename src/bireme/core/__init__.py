"""Errors, clock, log, named fault points: no opinions about training."""
