"""What is known of rules, one module a kind: pure, no kernel is asked."""
