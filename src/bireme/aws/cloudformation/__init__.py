"""Stacks: what to do with one, given its state; events and their causes; progress."""
