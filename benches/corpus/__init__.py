"""The corpus: labelled windows of traffic, drawn from a seed, that the judgement is measured on."""
