"""Stage 4, analyse: paired statistics, findings and the claims of the paper."""
