"""Forecast: what the first steps without GC say about the effect of GC, and the tasks it is calibrated on."""
