"""Copy a run's metrics to TensorBoard and MLflow; the results folder stays the complete record."""
