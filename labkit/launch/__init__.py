"""`labkit launch`: a file, a module or a notebook on the ranks of a cluster, from a shell."""
