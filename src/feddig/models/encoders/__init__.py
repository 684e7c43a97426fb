"""The default encoders, one for grey and one for colour images; `feddig encoder make` makes them again."""
