"""Calibration: many small tasks, each trained with tuned arms, to learn what a forecast is worth."""
