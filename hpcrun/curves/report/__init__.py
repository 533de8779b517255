"""From a curve to the terminal, image files, HTML, CSV and TensorBoard."""
