"""Commands: their arguments, and which functions of the library answer them."""
