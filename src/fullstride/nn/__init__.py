"""Fast forms of torch.nn modules, thin layers over ops. rewriting/ puts them in place."""
