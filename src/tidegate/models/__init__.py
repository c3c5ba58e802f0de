"""Models on this machine: the catalogue, hubs, downloads, conversion to GGUF, and what is whole and what is not."""
