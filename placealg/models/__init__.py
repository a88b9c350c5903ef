"""What is trained: models, their units and parameters, with exact counts."""
