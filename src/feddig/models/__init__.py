"""The networks: encoder P_R, guidance producer P_G, classifier M; and the vector view that training uses."""
