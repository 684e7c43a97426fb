"""Everything that depends on private names of Flower 1.41."""
