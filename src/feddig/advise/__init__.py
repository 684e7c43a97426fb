"""`feddig advise`: try privacy settings on own data and name those that meet given limits."""
