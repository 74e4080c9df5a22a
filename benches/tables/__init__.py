"""The measured tables, one a module, by what they measure."""
