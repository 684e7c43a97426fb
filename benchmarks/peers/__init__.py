"""What `benchmarks/peers.py` compares, each in a file that its own environment can run."""
