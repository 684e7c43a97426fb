"""FedDig on Flower: the only place that imports flwr. The round loop, the silos and the moderator stay ours."""
