"""Price files, cleaning, and the panel made of them."""
