"""What a machine has and lends to images: probing it, and injecting its libraries."""
