"""The peers of `benchmarks/peers.py`, each in a file that its environment can run."""
