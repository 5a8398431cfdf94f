"""How undefined bits pass through instructions: the rules of results, of memory and of tensor cores, and their origins."""
