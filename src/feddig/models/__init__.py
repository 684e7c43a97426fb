"""The networks: encoder P_R, guidance producer P_G and classifier M; and their parameters as one vector."""
