"""Where the cells of an artifact are run: on this computer, or by the jobs of a cluster."""
