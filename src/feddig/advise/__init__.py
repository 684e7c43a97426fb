"""`feddig advise`: try privacy settings on the user's own data and recommend one that meets the given limits."""
