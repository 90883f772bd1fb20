"""What a model needs of a card, and which flags of SGLang use the card well."""
