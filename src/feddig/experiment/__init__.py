"""An experiment: its settings, its TOML file, and what is set up from it before training."""
