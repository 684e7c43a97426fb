"""Run FedDig on Flower. Only this package imports flwr; the round loop is the same as everywhere."""
