"""The header: verdict, trial, rates and clients."""
