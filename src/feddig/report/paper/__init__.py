"""The paper's figures, drawn from results folders: one function each, all listed in figures.py."""
