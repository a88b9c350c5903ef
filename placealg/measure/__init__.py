"""Real PyTorch runs beside the formulas. With `watch.recorder` it is the only package that imports torch."""
