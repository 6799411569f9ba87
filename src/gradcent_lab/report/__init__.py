"""Stage 5, report: tables, figures, the HTML page and the terminal summary."""
