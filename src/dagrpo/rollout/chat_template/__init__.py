"""A model's own chat template, used so that no token which the engine wrote is ever made twice."""
