"""Engines carry messages between the moderator and the silos; the round loop is the same on each."""
