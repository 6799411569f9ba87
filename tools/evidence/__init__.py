"""The page "Does it help?": rows, figures and sentences, all computed from results/studies."""
