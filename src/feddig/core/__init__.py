"""The federated method: the round loop, silos, the moderator, local training and the algorithms."""
