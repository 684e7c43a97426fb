"""Reports: they read results folders, need no torch, and never train anything."""
