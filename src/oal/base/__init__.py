"""What everything stands on: files, checkpoints, seeds, settings, the console, pictures and statistics."""
