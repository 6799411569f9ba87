"""What a recipe runs: functions that turn the settings of a cell into an experiment or a measurement."""
