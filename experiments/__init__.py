"""One file per experiment: a grid of runs, a figure, and the claims that the figure must show."""
