"""Checked models of what the user wrote."""
