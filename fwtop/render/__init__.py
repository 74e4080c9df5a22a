"""Rules, observations and numbers as text: command lines, sentences, FlowSpec, JSON."""
