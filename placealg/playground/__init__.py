"""A page on which strategies are written, priced and proved, in a browser: what it is made of, and how it is built."""
