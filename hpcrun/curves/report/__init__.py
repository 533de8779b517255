"""Report curves in the terminal, and as images, HTML, CSV and TensorBoard event files."""
