"""The trainer's side of the exchange: push gradients to every lane, pull fresh parameters back."""
