"""From a weight file's metadata to a transformers model: configs, names, tokenizers."""
