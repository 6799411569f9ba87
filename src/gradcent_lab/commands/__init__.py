"""One module per subcommand of `gradcent`: `configure(parser)` without heavy imports, and `run(args)`."""
