"""The paper's figures, drawn from results folders; figures.py lists them."""
