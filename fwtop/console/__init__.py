"""The unprivileged process: takes samples in, judges, draws and stores."""
