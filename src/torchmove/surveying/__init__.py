"""Find every tensor of a state: the traversal, its readers, and the Inventory that they fill."""
