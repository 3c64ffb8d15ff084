"""One-line mutations of the product, each of which a named test must notice; `make mutants` shows that it does."""
