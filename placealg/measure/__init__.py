"""Real PyTorch runs beside the formulas: the one room that imports torch, and only when it is asked to run."""
