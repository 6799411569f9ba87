"""How a recipe shows its runs: the paper's figures, and tables beside the table of pairs."""
