"""What the program prints, kept as files; `make golden` shows differences, UPDATE=1 keeps the new output."""
