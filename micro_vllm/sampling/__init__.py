"""What to sample: the parameters of a request and the sampler that honours them."""
