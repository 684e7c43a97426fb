"""Noise on digests, and (as it grows) what that noise is worth."""
