"""Items of input: validated, as the model reads them, and as they are kept and given back."""
