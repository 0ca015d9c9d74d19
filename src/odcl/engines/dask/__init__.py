"""Tables beyond memory and beyond one machine: Dask carries pieces, :mod:`odcl.engines.pieces`
works on them. ``pip install 'odcl[dask]'``."""
