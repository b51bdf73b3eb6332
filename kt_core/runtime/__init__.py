"""Carry out a plan and run the model: loading, phases, generation."""
