"""Models to the Hub and back."""
