"""Fast forms of torch.nn modules, and what puts them in place of the ordinary ones."""
