"""The explorer: formats, fragments, swizzles and descriptors as one page that needs no server."""
