"""The runs behind the paper's tables and figures, and ours beside the paper's numbers."""
