"""CPU kernels for kt: linears and experts computed on GGUF blocks as they lie in the file."""
